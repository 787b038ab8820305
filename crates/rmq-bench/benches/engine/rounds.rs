//! Measures contenders side by side and prints the times as a table.
//!
//! Each round runs every contender once, so that other load on the machine affects all alike. Reported are the median
//! over the rounds and its ratio to the reference of the same table.

use rmq_bench::clock::{median, timed};
use rmq_bench::table::Table;
use rmq_bench::workload::{Bounds, Workload};

/// Queries in a batch.
pub const QUERIES: usize = 1 << 20;

/// Answers a batch of bounds, of any length.
pub type Run<'a> = Box<dyn FnMut(&[i64], &[i64]) + 'a>;

/// A way to answer queries.
pub struct Contender<'a> {
    pub name: String,
    pub run: Run<'a>,
    /// The cost of a query, by which batches are shortened so that a round ends soon.
    pub cost: Cost,
}

/// The cost of a query.
#[derive(Clone, Copy)]
pub enum Cost {
    /// About the same for all ranges.
    Constant,
    /// Tens of memory accesses.
    Tree,
    /// The whole range is read.
    Scan,
}

impl Cost {
    /// Returns the length of a batch.
    fn queries(self, n: usize, workload: Workload) -> usize {
        match self {
            Self::Constant => QUERIES,
            Self::Tree => QUERIES / 4,
            Self::Scan => {
                let queries = f64::from(1 << 27) / workload.mean_length(n);
                queries.clamp(48.0, (QUERIES / 4) as f64) as usize
            }
        }
    }
}

/// Nanoseconds per query: of the reference, and of each contender by workload.
pub struct Results {
    pub reference: f64,
    pub rows: Vec<(String, [f64; 4])>,
}

/// Runs `rounds` rounds after one that does not count. `workloads` are the bounds of [`Workload::ALL`].
pub fn measure(
    n: usize,
    rounds: usize,
    workloads: &[Bounds; 4],
    mut reference: impl FnMut(),
    contenders: &mut [Contender<'_>],
) -> Results {
    let mut reference_times = Vec::new();
    let mut times = vec![[const { Vec::new() }; 4]; contenders.len()];
    for round in 0..=rounds.max(1) {
        let time = timed(&mut reference);
        if round > 0 {
            reference_times.push(time.as_nanos() as f64 / QUERIES as f64);
        }
        for (contender, times) in contenders.iter_mut().zip(&mut times) {
            for (w, bounds) in workloads.iter().enumerate() {
                let queries = contender.cost.queries(n, Workload::ALL[w]);
                let bounds = bounds.first(queries);
                let time = timed(|| (contender.run)(bounds.left, bounds.right));
                if round > 0 {
                    times[w].push(time.as_nanos() as f64 / queries as f64);
                }
            }
        }
    }
    let rows = contenders.iter().zip(times);
    Results {
        reference: median(reference_times),
        rows: rows
            .map(|(contender, times)| (contender.name.clone(), times.map(median)))
            .collect(),
    }
}

impl Results {
    /// Prints nanoseconds per query, each with its ratio to the reference.
    pub fn print(&self, title: &str) {
        let title = format!(
            "{title}: ns/query (ratio to ref2 = {:.1} ns)",
            self.reference
        );
        let workloads = Workload::ALL.map(|workload| workload.name().to_owned());
        let header = std::iter::once(String::new()).chain(workloads);
        let mut table = Table::new(title, header);
        for (name, times) in &self.rows {
            let cell =
                |time: f64| format!("{time:.1} {:>9}", format!("({:.2})", time / self.reference));
            table.row(name, times.map(cell));
        }
        print!("\n{table}");
    }

    /// Formats the same as lines of a CSV file.
    pub fn csv(&self, values: &str, n: usize, data: &str) -> String {
        let mut lines = String::new();
        for (name, times) in &self.rows {
            for (workload, time) in Workload::ALL.iter().zip(times) {
                let ratio = time / self.reference;
                lines += &format!(
                    "{values},{},{data},\"{name}\",{},{time:.2},{ratio:.3}\n",
                    n.ilog2(),
                    workload.name()
                );
            }
        }
        lines
    }
}
