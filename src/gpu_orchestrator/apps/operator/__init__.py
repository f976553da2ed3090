"""The operator: finds a node for each GPUWorkload, runs it there as a Job, and tells how it fares.

Read in this order: reconcile (what is to be done), plan (the words for it), template and job (what runs),
world (what is free), eyes (gather the facts), apply (does it), controller (brings news), run (the process).
"""
