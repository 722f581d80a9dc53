"""
Ask which installed packages have known vulnerabilities, and say so where nobody could be asked.

pip-audit passes what it could not look up; a pass here means that each package was looked up.
For example: python .ci/audit.py .venv/bin/python build/audit.json
"""

import json
import subprocess
import sys
from pathlib import Path

_TIMEOUT_S = 600
_NUM_NAMED = 5
_VULNERABLE, _UNKNOWN = 1, 2


def main(interpreter: str, report: Path) -> int:
    """Return 0 for nothing known, 1 for something, 2 where not everything could be looked up."""
    where = "import sysconfig; print(sysconfig.get_path('purelib'))"
    packages = _run([interpreter, "-c", where]).stdout.strip()
    audit = Path(sys.executable).with_name("pip-audit")
    options = ["--progress-spinner", "off", "--skip-editable", "--format", "json"]
    done = _run([str(audit), "--path", packages, *options, "--output", str(report)])
    try:
        found = json.loads(report.read_text(encoding="utf-8"))["dependencies"]
    except (OSError, ValueError, KeyError):
        last = (done.stderr.strip().splitlines() or ["no word"])[-1]
        return _say(f"nothing was audited; is the network there? pip-audit says: {last}", _UNKNOWN)
    return _judge(found)


def _judge(found: list[dict[str, object]]) -> int:
    bad = [each for each in found if each.get("vulns")]
    unknown = [str(each["name"]) for each in found if "skip_reason" in each]
    for each in bad:
        _say(f"{each['name']} {each['version']}: {json.dumps(each['vulns'])[:500]}", 0)
    if bad:
        return _say(f"{len(bad)} of {len(found)} packages have known vulnerabilities", _VULNERABLE)
    # The editable package itself is nowhere to be found.
    unknown = [name for name in unknown if name != "slipstream"]
    if unknown:
        names = ", ".join(unknown[:_NUM_NAMED])
        return _say(
            f"{len(unknown)} of {len(found)} packages could not be looked up ({names}, ...): "
            "nothing is known of them. Is the index asked the real one, and the network there?",
            _UNKNOWN,
        )
    return _say(f"no known vulnerability in {len(found)} packages", 0)


def _run(command: list[str]) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(  # noqa: S603 - our own programs
        command, check=False, capture_output=True, text=True, timeout=_TIMEOUT_S
    )


def _say(what: str, status: int) -> int:
    sys.stderr.write(f"==> {what}\n")
    return status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], Path(sys.argv[2])))
