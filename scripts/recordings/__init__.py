"""Recordings of a terminal as animated SVG pictures for the README: `make recordings`. Read in this order:

terminal    what a terminal shows after the bytes that a program sent
drawing     one picture of all that was shown, each line for as long as it was there
__main__    runs `make run` and `make demo` in a terminal and writes docs/run.svg and docs/demo.svg
"""
