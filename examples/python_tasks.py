"""Tasks from functions. A worker that was started with `--app python_tasks` in this folder runs them."""

from dataclasses import dataclass

from gpu_orchestrator import task


@dataclass
class Score:
    epoch: int
    loss: float


@task(gpu_memory="2GB", retries=2)
def train(epochs: int, rate: float = 0.5) -> list[Score]:
    """Train a model; each line that is printed is seen at once."""
    scores = []
    for epoch in range(1, epochs + 1):
        print(f"epoch {epoch}")
        scores.append(Score(epoch, round(rate**epoch, 3)))
    return scores


@task(gpus=0)
async def shout(text: str) -> str:
    return text.upper()
