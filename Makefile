# Every habit of work. `make` alone lists them.
PYTHON ?= python3
VENV_PYTHON := .venv/bin/python
STATICCHECK := honnef.co/go/tools/cmd/staticcheck@v0.8.2
GO_MODULES := agent dev/cluster/addons
.DEFAULT_GOAL := help
MAKEFLAGS += --no-print-directory

.PHONY: help
help: ## list what there is
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { gsub(/\$$\$$/, "$$"); printf "  make %-14s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)
	@echo "  CLUSTER=auto|native|kind|current chooses the cluster, CLUSTER_NAME which of several."

.PHONY: venv
venv: ## the virtual environment .venv, again only when pyproject.toml has changed
	@$(PYTHON) dev/venv.py

.PHONY: cluster
cluster: venv ## a cluster with the images and the operator of this tree; quick when nothing changed
	@$(VENV_PYTHON) dev/cluster.py up > /dev/null
	@$(VENV_PYTHON) dev/images.py build > /dev/null
	@$(VENV_PYTHON) dev/install.py

.PHONY: images
images: venv ## build what changed and bring it to the cluster
	@$(VENV_PYTHON) dev/images.py build

.PHONY: image-context
image-context: venv ## fill build/image for a `docker build` of operator/Dockerfile by hand
	@$(VENV_PYTHON) dev/images.py context

.PHONY: kubeconfig
kubeconfig: ## print the line that points kubectl at the cluster: eval "$$(make kubeconfig)"
	@$(PYTHON) dev/cluster.py kubeconfig --export

.PHONY: demo
demo: cluster ## an agent repairs a git repository inside a pod
	@$(VENV_PYTHON) dev/cluster.py run -- $(VENV_PYTHON) examples/demo/run.py

.PHONY: test
test: venv ## everything, as CI does: lint, Go tests, and all Python tests on a cluster
	@$(MAKE) lint go-test cluster
	@$(VENV_PYTHON) dev/cluster.py run -- $(VENV_PYTHON) -m pytest

.PHONY: test-fast
test-fast: venv ## the tests that need no cluster and no API server
	@$(VENV_PYTHON) -m pytest -m "not cluster and not apiserver"

.PHONY: go-test
go-test:
	@echo "Testing the agent …"
	@cd agent && go test ./...

.PHONY: lint
lint: venv ## ruff, mypy, import-linter, shell syntax, gofmt, go vet, staticcheck
	@echo "Linting …"
	@$(VENV_PYTHON) -m ruff check --quiet .
	@$(VENV_PYTHON) -m ruff format --quiet --check .
	@$(VENV_PYTHON) -m mypy
	@$(VENV_PYTHON) -m mypy -p dev -p bench
	@.venv/bin/lint-imports --no-logo | tail -n 1
	@for script in dev/cluster/*.sh dev/cluster/kube/*.sh .ci/run; do bash -n "$$script" || exit 1; done
	@if command -v shellcheck > /dev/null; then shellcheck dev/cluster/*.sh dev/cluster/kube/*.sh .ci/run; fi
	@unformatted=$$(gofmt -l $(GO_MODULES) dev/cluster/kube); \
	  if [ -n "$$unformatted" ]; then echo "gofmt would change $$unformatted: run make format." >&2; exit 1; fi
	@cd agent && go vet ./... && go run $(STATICCHECK) ./...

.PHONY: format
format: venv ## let ruff and gofmt rewrite the sources
	@$(VENV_PYTHON) -m ruff check --quiet --fix-only .
	@$(VENV_PYTHON) -m ruff format --quiet .
	@gofmt -w $(GO_MODULES) dev/cluster/kube

.PHONY: crds
crds: venv ## regenerate the custom resource definitions from the models
	@$(VENV_PYTHON) -m sandbox_api.crd
	@$(VENV_PYTHON) charts/copy_crds.py

.PHONY: docs
docs: venv ## regenerate the reference from the models
	@$(VENV_PYTHON) -m sandbox_api.reference

.PHONY: bench
bench: cluster ## figures as ratios against baselines in the same run
	@$(VENV_PYTHON) dev/cluster.py run -- $(VENV_PYTHON) -m bench

.PHONY: clean-cluster
clean-cluster: ## remove every cluster and control plane: processes, mounts, interfaces, control groups, state
	@$(PYTHON) dev/cluster.py down --all

.PHONY: clean-cache
clean-cache: ## remove what was built outside the clone: cluster binaries, image bases, images
	@$(PYTHON) dev/cluster.py clean-cache
