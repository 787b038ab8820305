//! Measures contenders side by side and prints them as a table.
//!
//! Each round runs every contender once, so that what else the machine does hits all alike; what counts is the median over
//! the rounds, and the ratio to the reference in the same table.

use rmq_bench::support::QUERIES;
use rmq_bench::support::clock::timed;
use rmq_bench::support::workload::Workload;

/// Answers one batch of bounds.
pub type Run<'a> = Box<dyn FnMut(&[i64], &[i64]) + 'a>;

/// One way to answer queries.
pub struct Contender<'a> {
    pub name: String,
    /// Answers one batch, of whatever length.
    pub run: Run<'a>,
    /// How many values a query may read; batches are cut so that a run ends soon.
    pub cost: Cost,
}

/// What a query of a contender costs.
#[derive(Clone, Copy)]
pub enum Cost {
    /// About the same whatever the range.
    Constant,
    /// Tens of memory accesses.
    Tree,
    /// The whole range.
    Scan,
}

impl Cost {
    fn queries(self, n: usize, workload: Workload) -> usize {
        match self {
            Self::Constant => QUERIES,
            Self::Tree => QUERIES / 4,
            Self::Scan => {
                let length = match workload {
                    Workload::Small => (n as f64).powf(0.3),
                    Workload::Medium => (n as f64).powf(0.6),
                    Workload::Large => n as f64 / 2.0,
                    Workload::Mixed => n as f64 / 6.0,
                };
                ((1 << 27) as f64 / length).clamp(48.0, (QUERIES / 4) as f64) as usize
            }
        }
    }
}

/// Bounds of one batch.
pub type Bounds = (Vec<i64>, Vec<i64>);

/// Nanoseconds a query: of the reference, and of each contender by workload.
pub struct Results {
    pub reference: f64,
    pub rows: Vec<(String, [f64; 4])>,
}

/// Runs `rounds` rounds after one that does not count.
pub fn measure(
    n: usize,
    rounds: usize,
    workloads: &[Bounds; 4],
    mut reference: impl FnMut(),
    contenders: &mut [Contender<'_>],
) -> Results {
    let mut references = Vec::new();
    let mut times = vec![[const { Vec::new() }; 4]; contenders.len()];
    for round in 0..=rounds {
        let time = timed(&mut reference);
        if round > 0 {
            references.push(time.as_nanos() as f64 / QUERIES as f64);
        }
        for (contender, times) in contenders.iter_mut().zip(&mut times) {
            for (w, (left, right)) in workloads.iter().enumerate() {
                let m = contender.cost.queries(n, Workload::ALL[w]);
                let time = timed(|| (contender.run)(&left[..m], &right[..m]));
                if round > 0 {
                    times[w].push(time.as_nanos() as f64 / m as f64);
                }
            }
        }
    }
    let rows = contenders.iter().zip(times);
    Results {
        reference: median(&mut references),
        rows: rows
            .map(|(contender, mut times)| {
                (
                    contender.name.clone(),
                    std::array::from_fn(|w| median(&mut times[w])),
                )
            })
            .collect(),
    }
}

/// The median; 0 of nothing.
pub fn median(times: &mut [f64]) -> f64 {
    times.sort_by(f64::total_cmp);
    times.get(times.len() / 2).copied().unwrap_or(0.0)
}

impl Results {
    /// Prints nanoseconds a query with the ratio to the reference behind.
    pub fn print(&self, title: &str) {
        println!(
            "\n{title}: ns/query (ratio to ref2 = {:.1} ns)",
            self.reference
        );
        let head = Workload::ALL.map(|workload| format!("{:>21}", workload.name()));
        println!("{:38}{}", "", head.concat());
        for (name, times) in &self.rows {
            let cells = times.map(|time| {
                let ratio = time / self.reference;
                format!("{time:>11.1} {:>9}", format!("({ratio:.2})"))
            });
            println!("{name:38}{}", cells.concat());
        }
    }

    /// The same as lines of a CSV file.
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
