"""The NICs behind the links: reads their counters, optics and PCIe, judges, forecasts."""
