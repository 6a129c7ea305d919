"""Whose certificates are believed."""

from __future__ import annotations

from pathlib import Path

import certifi
import pytest

from activities.trust import trusted
from tests.conftest import Environ

END = "-----END CERTIFICATE-----\n"


@pytest.mark.parametrize("obeys", [True, False])
def test_environment_names_the_certificates_where_it_may(
    tmp_path: Path, environ: Environ, obeys: bool
) -> None:
    file = tmp_path / "one.pem"
    file.write_text(Path(certifi.where()).read_text().partition(END)[0] + END)
    environ["SSL_CERT_FILE"] = str(file)
    trusted.cache_clear()
    assert (len(trusted(environment=obeys).get_ca_certs()) == 1) is obeys
    trusted.cache_clear()
