"""`gpu-orchestrator completion`: a script for the shell."""

from typing import Literal

from gpu_orchestrator.cli import output

Shell = Literal["bash", "zsh", "fish"]


def completion(shell: Shell, /) -> None:
    """Print a script that completes commands and options in your shell.

    For bash: eval "$(gpu-orchestrator completion bash)", best in ~/.bashrc.

    For zsh: gpu-orchestrator completion zsh > ~/.zfunc/_gpu-orchestrator, with ~/.zfunc in fpath.

    For fish: gpu-orchestrator completion fish > ~/.config/fish/completions/gpu-orchestrator.fish.

    Parameters
    ----------
    shell
        bash, zsh or fish.
    """
    from gpu_orchestrator.cli.main import application

    output.say(application().generate_completion(shell=shell))
