"""The layout of a run over devices. It is no setting: a run may be resumed with another one."""

from dataclasses import dataclass

from examples.language_model.settings import Settings, SettingsError


@dataclass(frozen=True, kw_only=True)
class Layout:
    """The distribution of rows, of their tokens and of parameters.

    Attributes:
        sequence_parallel: number of devices that share the tokens of each row; groups of so many share the rows.
        shard_parameters: whether each device holds a part of the parameters and of the optimiser's state, and not all.
        timeout: seconds after which a process that waits for another one ends with an error.
    """

    sequence_parallel: int = 1
    shard_parameters: bool = False
    timeout: float = 600.0

    def check(self, settings: Settings, devices: int) -> None:
        """Raise if a run cannot be laid out in this way over so many devices.

        Raises:
            SettingsError: tokens or rows cannot be divided equally, or a block's steps cannot be sharded.
        """
        parts = self.sequence_parallel
        if parts < 1 or devices % parts:
            raise SettingsError(f"`--sequence-parallel` is {parts}; expected a divisor of {devices}, the devices")
        if settings.row_tokens % parts:
            raise SettingsError(
                f"`row_tokens` is {settings.row_tokens}; expected a multiple of `--sequence-parallel`, {parts}"
            )
        others = [cell for cell in settings.cells if cell != "mlstm"]
        if parts > 1 and others:
            raise SettingsError(
                f"`--sequence-parallel` is {parts} and `blocks` is {settings.blocks}: a step of {others[0]} needs the "
                "state after the step before it, so that its steps cannot be sharded; expected blocks of mlstm alone"
            )
        settings.check_devices(devices // parts)


ONE_DEVICE_EACH = Layout()
"""Every device takes rows of its own and holds all parameters."""
