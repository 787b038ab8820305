//! Answers the ranges of files. `benches/python_frames.py --index` compares the time with that of the Python package.
//! The folder has `values` (f64), `left` and `right` (i64). Prints the CPU seconds of the answers on one thread, and
//! their sum.
//!
//! ```sh
//! cargo run --release -p rmq-engine --no-default-features --example file_ranges FOLDER
//! ```

use std::error::Error;
use std::fs;

use rmq_engine::Index;

fn main() -> Result<(), Box<dyn Error>> {
    let folder = std::env::args().nth(1).ok_or("a folder is needed")?;
    let read = |name: &str| fs::read(format!("{folder}/{name}"));
    let bytes = read("values")?;
    let values: Vec<f64> = words(&bytes).map(f64::from_le_bytes).collect();
    let (left, right) = (read("left")?, read("right")?);
    let left: Vec<i64> = words(&left).map(i64::from_le_bytes).collect();
    let right: Vec<i64> = words(&right).map(i64::from_le_bytes).collect();

    let index = Index::min(&values)?;
    let before = cpu_nanoseconds()?;
    let mut lows = vec![0.0; left.len()];
    index.values(&left, &right, &mut lows)?;
    let after = cpu_nanoseconds()?;
    println!("{} {}", (after - before) / 1e9, lows.iter().sum::<f64>());
    Ok(())
}

fn words(bytes: &[u8]) -> impl Iterator<Item = [u8; 8]> {
    bytes.as_chunks().0.iter().copied()
}

/// The time that this thread ran, as Linux counts it.
fn cpu_nanoseconds() -> Result<f64, Box<dyn Error>> {
    let counted = fs::read_to_string("/proc/thread-self/schedstat")?;
    Ok(counted.split(' ').next().unwrap_or_default().parse()?)
}
