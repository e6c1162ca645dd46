"""Builds coop._C: the engine (no torch in it) and the hook (the only files that include torch)."""

import glob
import os

from setuptools import setup
from torch.utils.cpp_extension import BuildExtension, CppExtension, include_paths

flags = ["-std=c++20", "-O2", "-g1", "-DNDEBUG", "-fvisibility=hidden", "-Wall", "-Wextra", "-Wshadow", "-Werror"]
flags += ["-iquote", os.path.abspath("csrc")]  # our headers, and not torch's: both have a folder of that name
# Warnings are errors in our code, not in torch's headers.
system_headers = [flag for path in include_paths() for flag in ("-isystem", path)]

setup(
    ext_modules=[
        CppExtension(
            "coop._C",
            sorted(glob.glob("csrc/*/*.cpp")),
            extra_compile_args=[*flags, *system_headers],
        )
    ],
    cmdclass={"build_ext": BuildExtension},
)
