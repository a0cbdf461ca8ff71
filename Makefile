# What users, developers and CI call. `make` alone lists the targets.

PYTHON ?= python3
TORCH ?=
TORCH_CPU_INDEX ?= https://download.pytorch.org/whl/cpu
WORKERS ?= 2
ARGS ?=

BIN := .venv/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check
PIP_LOWEST := .venv-lowest/bin/python -m pip --disable-pip-version-check

# The tests begin some hundred processes, which would compile the package again each time.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help setup demo picture results rehearse packages test test-all test-lowest test-slurm test-browser \
  test-latex lint format type bench docs clean

help: ## show this list
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1|\2/p' Makefile | awk -F'|' '{printf "%-17s %s\n", $$1, $$2}'
	@echo
	@echo "  TORCH=cpu         with the first call: the CPU build of torch (about 200 MB instead of"
	@echo "                    several GB), e.g.  make demo TORCH=cpu"
	@echo "  PYTHON=...        the Python (3.10 or newer) to make .venv with; python3"
	@echo "  WORKERS=N         processes that run the tests; 2"
	@echo "  ARGS=\"...\"        more arguments for pytest or scripts/bench.py,"
	@echo "                    e.g.  make test ARGS=\"-k resume\""

# -- the environment -------------------------------------------------------------------------------

setup: .venv/.ready ## make .venv with the tested versions; does nothing if that is done

# Print one sentence on what is missing, before anything is made.
define require_python
version=$$("$(PYTHON)" -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2>/dev/null) || { \
  echo "error: '$(PYTHON)' does not run; install Python 3.10 or newer, or name one:" \
    "make setup PYTHON=/path/to/python3" >&2; exit 2; }; \
"$(PYTHON)" -c 'import sys; sys.exit(sys.version_info < (3, 10))' || { \
  echo "error: '$(PYTHON)' is Python $$version, but ctta-bench needs 3.10 or newer; name a newer one:" \
    "make setup PYTHON=/path/to/python3" >&2; exit 2; }; \
"$(PYTHON)" -c 'import venv, ensurepip' 2>/dev/null || { \
  echo "error: '$(PYTHON)' (Python $$version) lacks the module venv or ensurepip; install it" \
    "(Debian, Ubuntu: apt install python$$version-venv) or name another Python:" \
    "make setup PYTHON=/path/to/python3" >&2; exit 2; }
endef

.venv/.ready: pyproject.toml constraints.txt
	@case "$(TORCH)" in ''|cpu) ;; *) \
	  echo "error: TORCH=$(TORCH): choose cpu, or leave it out for what pip finds" >&2; exit 2;; esac
	@$(PIP) --version >/dev/null 2>&1 || { $(require_python); "$(PYTHON)" -m venv --clear .venv; }
# Without its dependencies: that index has few versions of them; the next step installs them.
	@test -z "$(TORCH)" || $(PIP) install --no-deps -c constraints.txt \
	  --index-url "$(TORCH_CPU_INDEX)" torch torchvision
	$(PIP) install -c constraints.txt -e '.[dev]'
# The extra [seg], and the package that our corruptions are compared with. Without their dependencies:
# they require opencv-python, which would overwrite the files of opencv-python-headless.
	$(PIP) install -c constraints.txt --no-deps onedl-mmcv onedl-mmsegmentation imagecorruptions-imaug
	@touch $@

# -- what users call -------------------------------------------------------------------------------

demo: setup ## eight methods on the embedded scenes, and their report; a second call resumes
	$(BIN)/ctta-bench grid quickstart
	$(BIN)/ctta-bench report runs/quickstart
	@$(BIN)/python scripts/results.py --demo

results: setup ## every table of docs/results and the README, some hours; a second call resumes
	OMP_NUM_THREADS=1 $(BIN)/python scripts/results.py $(ARGS)

picture: demo ## docs/images/report.png: the top of the demo's report, 1280 pixels wide (Debian, root)
	$(call debian,chromium,chromium)
	chromium --headless --no-sandbox --hide-scrollbars --window-size=1280,1205 \
	  --screenshot=docs/images/report.png "file://$(CURDIR)/runs/quickstart/report/index.html"

rehearse: setup ## every experiment of the paper on made-up data, to its tables; ARGS=--smallest
	OMP_NUM_THREADS=1 $(BIN)/python scripts/rehearse.py $(ARGS)

# In the order of their names: by the number of their tests, the longest files, which have few, would
# come last, and one process alone would run the last of them.
BY_FILE := -n $(WORKERS) --dist loadfile --no-loadscope-reorder

test: setup ## the tests, in a few minutes
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest $(BY_FILE) $(ARGS)

test-all: setup ## the slow tests too; still without a GPU and Slurm
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest $(BY_FILE) -m "not gpu and not slurm" $(ARGS)

test-slurm: setup ## the tests of grids on a real Slurm, which this installs and starts (Debian, root)
	tests/slurm/cluster.sh install
	tests/slurm/cluster.sh start
	trap 'tests/slurm/cluster.sh stop' EXIT; eval "$$(tests/slurm/cluster.sh env)"; \
	  CTTA_NEEDS_SLURM=1 OMP_NUM_THREADS=1 $(BIN)/python -m pytest -m slurm -n 4 --dist worksteal \
	  tests/slurm $(ARGS) && $(BIN)/python scripts/stress_slurm.py

# Install a missing command with its packages, or print one sentence that this is not possible.
debian = @command -v $(1) >/dev/null || \
  { apt-get update -q && apt-get install -y -q --no-install-recommends $(2); } || \
  { echo "error: these tests need $(1), and apt-get cannot install it ($(2))" >&2; exit 2; }

packages: ## all that the tests below need of Debian's packages (root)
	tests/slurm/cluster.sh install
	$(call debian,chromium,chromium)
	$(call debian,pdflatex,texlive-latex-base texlive-latex-recommended)

test-browser: .venv/.browser .venv/.docs ## a report's page and the docs in headless Chromium (Debian, root)
	$(call debian,chromium,chromium)
	CTTA_NEEDS_BROWSER=1 OMP_NUM_THREADS=1 $(BIN)/python -m pytest -m slow -n $(WORKERS) --dist loadfile \
	  tests/analysis/test_page_in_browser.py \
	  tests/analysis/test_site_in_browser.py tests/test_docs_site.py $(ARGS)

test-latex: setup ## the tests that compile every kind of table with pdflatex (Debian, root)
	$(call debian,pdflatex,texlive-latex-base texlive-latex-recommended)
	CTTA_NEEDS_LATEX=1 OMP_NUM_THREADS=1 $(BIN)/python -m pytest -m slow \
	  tests/analysis/test_latex.py $(ARGS)

.venv/.browser: .venv/.ready
	$(PIP) install -c constraints.txt -e '.[browser]'
	@touch $@

# What depends on the versions of torch, timm, numpy, pandas, matplotlib, pydantic and typer. Warnings
# of old versions are not errors here. PYTHON=python3.10: not all lowest versions support newer ones.
# torch 2.6 writes a file when it is imported, so the test of a full disk cannot pass.
CORE_TESTS := tests/parity/test_parity.py tests/test_cli.py tests/test_config.py tests/test_engine.py \
  tests/test_metrics.py tests/test_record.py tests/test_state.py tests/test_stream.py \
  tests/analysis/test_report.py tests/analysis/test_tables.py
test-lowest: .venv-lowest/.ready ## the core tests on the lowest supported versions, in .venv-lowest
	OMP_NUM_THREADS=1 .venv-lowest/bin/python -m pytest -n $(WORKERS) --dist loadfile \
	  -o filterwarnings= $(CORE_TESTS) $(ARGS) \
	  --deselect tests/test_cli.py::test_a_disk_without_space_gives_one_sentence_and_no_half_result

.venv-lowest/.ready: pyproject.toml constraints-lowest.txt
	@$(require_python); "$(PYTHON)" -m venv --clear .venv-lowest
	@test -z "$(TORCH)" || $(PIP_LOWEST) install --no-deps -c constraints-lowest.txt \
	  --index-url "$(TORCH_CPU_INDEX)" torch torchvision
	$(PIP_LOWEST) install -c constraints-lowest.txt -e . \
	  hypothesis pytest pytest-timeout pytest-xdist torchmetrics
	@touch $@

# -- what developers call --------------------------------------------------------------------------

lint: setup ## formatting, ruff's rules, allowed imports, spelling
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/lint-imports
	$(BIN)/codespell -D - -D .ci/british.txt

format: setup ## format the code, and repair what ruff can
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

type: setup ## mypy, strict; it finds every import in the checkout itself
	$(BIN)/python -m mypy -p ctta_bench

bench: setup ## speed and memory, as ratios to what the arithmetic needs
	OMP_NUM_THREADS=1 $(BIN)/python scripts/bench.py steps $(ARGS)
	OMP_NUM_THREADS=1 $(BIN)/python scripts/bench.py segmentation $(filter --write-baseline,$(ARGS))

docs: .venv/.docs ## docs/ as a site in build/docs, which opens from disk; a warning is an error
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --quiet
	@echo "build/docs/index.html"

.venv/.docs: .venv/.ready
	$(PIP) install -c constraints.txt -e '.[docs]'
	@touch $@

clean: ## remove what was built and cached; .venv and runs stay
	rm -rf build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -not -path './.venv*' -prune -exec rm -rf {} +
