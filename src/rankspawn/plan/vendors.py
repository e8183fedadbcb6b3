"""Device types by vendor, as data: which mask each one reads and how the kernel shows it.

A type that is not listed works too, as long as it is named: ``device_type="mychip"`` with
``devices`` or ``FLAGS_selected_mychips``. To support one fully, add a line here.
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["VENDORS", "Vendor", "vendor_of"]


@dataclass(frozen=True, slots=True)
class Vendor:
    """One type of device.

    Attributes:
        device_type: Its name in Paddle, which is also part of ``FLAGS_selected_<type>s``.
        masks: Variables that limit what its runtime shows; the first one set counts.
            A mask renumbers: its first entry is device 0 of the process.
        nodes: Regular expression that matches one device node per device, below
            ``/dev``; empty if the kernel shows no such node.
    """

    device_type: str
    masks: tuple[str, ...] = ()
    nodes: str = ""

    @property
    def flag(self) -> str:
        """The variable that tells a rank its device."""
        return f"FLAGS_selected_{self.device_type}s"


# In the order in which ``backend="auto"`` looks for them. GPUs have two vendors with
# masks that interact, so their masks are read in devices.py and their nodes in machine.py.
# Cards that pose as GPUs to CUDA programs (iluvatar_gpu, metax_gpu) obey CUDA's mask too;
# the mask of their own comes first and is the one that reveals them.
_TABLE = (
    Vendor("gpu", ("CUDA_VISIBLE_DEVICES",)),
    Vendor("xpu", ("XPU_VISIBLE_DEVICES",), r"xpu[0-9]+"),
    Vendor("npu", ("ASCEND_RT_VISIBLE_DEVICES",), r"davinci[0-9]+"),
    Vendor("mlu", ("MLU_VISIBLE_DEVICES",), r"cambricon_dev[0-9]+"),
    Vendor("gcu", ("TOPS_VISIBLE_DEVICES",), r"gcu[0-9]+"),
    Vendor("iluvatar_gpu", ("ILUVATAR_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES"), r"iluvatar[0-9]+"),
    Vendor("metax_gpu", ("MACA_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES")),
    # Newer Gaudi drivers use /dev/accel/accel<n>, which other accelerators share.
    Vendor("intel_hpu", ("HABANA_VISIBLE_MODULES",), r"hl[0-9]+"),
    Vendor("sdaa", ("SDAA_VISIBLE_DEVICES",)),
    Vendor("musa", ("MUSA_VISIBLE_DEVICES",)),
)

VENDORS: dict[str, Vendor] = {vendor.device_type: vendor for vendor in _TABLE}


def vendor_of(device_type: str) -> Vendor:
    """What is known about ``device_type``; for an unlisted one, its name alone."""
    return VENDORS.get(device_type) or Vendor(device_type)
