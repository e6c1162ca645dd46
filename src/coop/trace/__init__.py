"""Traces of one training step: the type, its file, and where they come from."""

from coop.trace.file import read, write
from coop.trace.recording import record
from coop.trace.trace import Hold, Instruction, Op, Output, Release, Source, Trace, TraceError

__all__ = ["Hold", "Instruction", "Op", "Output", "Release", "Source", "Trace", "TraceError", "read", "record", "write"]
