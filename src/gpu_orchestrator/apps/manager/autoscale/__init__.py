"""How many workers there should be. `apps/manager/__init__` lists the modules in reading order."""
