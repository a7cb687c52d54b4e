"""The demonstration: a job on 4 hosts × 4 rails, five faults, what was seen and what it cost."""
