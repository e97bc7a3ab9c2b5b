"""The course's instrument: a kernel's accesses, noted and counted. The simulator's door and `inspect` import it."""
