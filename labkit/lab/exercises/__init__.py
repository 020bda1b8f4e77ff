"""The exercises of the chapters: one module each, with the checks that a solution has to pass."""
