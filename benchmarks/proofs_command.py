"""The command line of the evidence about kernels: ``python -m benchmarks prove``."""

from pathlib import Path

import click

from benchmarks import proofs


@click.command("prove")
@click.argument(
    "directories", nargs=-1, metavar="[DIR]...", type=click.Path(exists=True, file_okay=False, path_type=Path)
)
def prove_command(directories: tuple[Path, ...]) -> None:
    """Take runs of on_gpu.sh as evidence for kernels; without DIR, derive it again from the results in the tree."""
    for directory in directories:
        try:
            path = proofs.prove(directory, proofs.ROOT)
        except ValueError as error:
            raise click.UsageError(str(error)) from error
        for package, found in proofs.proofs_of(proofs.read(path), path.name, proofs.ROOT).items():
            words = [f"{proof.operation} ({', '.join(proof.dtypes)})" for proof in found]
            click.echo(f"{package}, {proofs.JUDGED[package].backend}: {'; '.join(words) or 'nothing is proven'}")
        click.echo(f"{path.relative_to(proofs.ROOT)}: commit it, with the packages' {proofs.PROOFS}")
    proofs.write(proofs.ROOT)
