"""The reference driver: a Device on the specification itself, behind the same door as any vendor's."""

from reference_driver.device import ReferenceDevice

DRIVER = ReferenceDevice

__all__ = ["DRIVER", "ReferenceDevice"]
