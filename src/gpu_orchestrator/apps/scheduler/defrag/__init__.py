"""`gpu-orchestrator defrag`: which pods would have to move so that a shape finds room, and moving them."""
