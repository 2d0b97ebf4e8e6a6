"""`python train.py ARGUMENTS`, as it is, and its record copied to where this benchmark looks: shipped.py RECORD ARGUMENTS"""

import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def main() -> None:
    record, run_dir = Path(sys.argv[1]), Path(sys.argv[1]).with_name("run")
    command = [sys.executable, str(ROOT / "train.py"), *sys.argv[2:], f"hydra.run.dir={run_dir}"]
    subprocess.run(command, check=True)
    steady = run_dir / "steady.json"  # of steady_callback.py, where it was asked for
    files = [run_dir / "metrics.json", *([steady] if steady.is_file() else [])]
    contents = [json.loads(file.read_text()) for file in files]
    record.write_text(json.dumps({name: value for content in contents for name, value in content.items()}))


if __name__ == "__main__":
    main()
