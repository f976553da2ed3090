"""The documentation as a site: `make docs`. Read the modules in this order:

pages    which pages there are, their links and headings; the tests of links use it as well
hooks    what the site generator calls: other files of the repository as pages, links between them
"""
