# Recipes for https://just.systems

target := env_var_or_default("CARGO_TARGET_DIR", "target")

# List the recipes
default:
    @just --list

# Run the shell, by default with the quickstart
run *args="-f examples/quickstart.sql":
    cargo run --bin rmq -- {{ args }}

# Run the tests
test *args:
    cargo test {{ args }}

# Run everything a change must pass
ci:
    .ci/run

# Run a benchmark of benches/: sql, range_join or whole_trip
bench name="range_join" *args:
    cargo bench -p datafusion-rmq --profile quick --bench {{ name }} -- {{ args }}

# Pack the engine's tests and benchmarks for a machine with a GPU
bundle *file:
    scripts/bundle {{ file }}

# Build and install a dev wheel of the Python package, and test it
python *args:
    scripts/wheel --dev
    scripts/test-python {{ args }}

# Build the API documentation and check the examples of README.md and docs/
docs:
    RUSTDOCFLAGS="-D warnings" cargo doc --no-deps --lib
    cargo build --bin rmq
    scripts/check-readme {{ target }}/debug/rmq

# Rebuild the PTX of the kernels and the SPIR-V of the shaders, and test the kernels' logic on the CPU
kernels:
    kernels/compile
    kernels/compile-shaders
    kernels/host/test 100
