//! Threads that one step of a computation is divided among.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use datafusion_common::Result;

/// The items that are moved or compared between two checks for cancellation: about a millisecond of work.
pub const STEP: usize = 1 << 16;

/// A number of threads, and the check for cancellation that they share.
///
/// A step uses scoped threads, so that it can borrow what it works on. It must be called from a thread that may block.
/// Starting a thread takes some 20 µs, so small steps run on the calling thread: see [`Self::parts`].
#[derive(Clone, Copy)]
pub struct Workers<'a> {
    threads: usize,
    check: &'a (dyn Fn() -> Result<()> + Sync),
}

impl<'a> Workers<'a> {
    /// At most this many threads, at least one. `check` returns an error once the query is cancelled.
    pub fn new(threads: usize, check: &'a (dyn Fn() -> Result<()> + Sync)) -> Self {
        let threads = threads.max(1);
        Self { threads, check }
    }

    /// The most threads that work on a step.
    pub fn threads(&self) -> usize {
        self.threads
    }

    /// Checks for cancellation.
    ///
    /// # Errors
    /// An execution error once the query is cancelled.
    pub fn check(&self) -> Result<()> {
        (self.check)()
    }

    /// The number of parts into which work on this many rows is divided: one per thread, but none with less than a step
    /// of work.
    pub fn parts(&self, rows: usize) -> usize {
        self.threads.min(rows / (2 * STEP)).max(1)
    }

    /// Divides the positions up to `rows` into [`Self::parts`] consecutive ranges of about equal length; all begin at a
    /// multiple of `align`.
    pub fn ranges(&self, rows: usize, align: usize) -> Vec<std::ops::Range<usize>> {
        let share = rows.div_ceil(self.parts(rows)).next_multiple_of(align);
        let starts = (0..rows).step_by(share.max(1));
        starts.map(|start| start..rows.min(start + share)).collect()
    }

    /// Runs `work` on each item, and returns the results in the order of the items. Threads take the items in order as
    /// they become free, several at a time where there are many, and check for cancellation before each.
    ///
    /// # Errors
    /// The first error that occurs; no item is begun after it.
    pub fn map<T: Send, R: Send>(
        &self,
        items: Vec<T>,
        work: impl Fn(T) -> Result<R> + Sync,
    ) -> Result<Vec<R>> {
        let threads = self.threads.min(items.len());
        if threads < 2 {
            let mut results = Vec::with_capacity(items.len());
            for item in items {
                self.check()?;
                results.push(work(item)?);
            }
            return Ok(results);
        }
        let results = Mutex::new((Vec::with_capacity(items.len()), None));
        let items = Mutex::new(items.into_iter().enumerate());
        let failed = AtomicBool::new(false);
        let run = || {
            let mut done = vec![];
            loop {
                let taken: Vec<(usize, T)> = {
                    let mut items = lock(&items);
                    // So many that threads rarely wait for each other, and fewer towards the end, which they reach at
                    // about the same time.
                    let count = (items.len() / (16 * threads)).clamp(1, 64);
                    items.by_ref().take(count).collect()
                };
                if taken.is_empty() {
                    break;
                }
                for (index, item) in taken {
                    if failed.load(Ordering::Relaxed) {
                        return;
                    }
                    match self.check().and_then(|()| work(item)) {
                        Ok(result) => done.push((index, result)),
                        Err(error) => {
                            failed.store(true, Ordering::Relaxed);
                            lock(&results).1.get_or_insert(error);
                            return;
                        }
                    }
                }
            }
            lock(&results).0.append(&mut done);
        };
        std::thread::scope(|scope| {
            for _ in 1..threads {
                let thread = std::thread::Builder::new().name("rmq-worker".to_owned());
                // Without further threads, those there are do all the work.
                if thread.spawn_scoped(scope, run).is_err() {
                    break;
                }
            }
            run();
        });
        let (mut results, error) = results.into_inner().unwrap_or_else(PoisonError::into_inner);
        if let Some(error) = error {
            return Err(error);
        }
        results.sort_unstable_by_key(|(index, _)| *index);
        Ok(results.into_iter().map(|(_, result)| result).collect())
    }
}

/// Locks a mutex. A panic while it is locked leaves its content consistent, and ends the whole step anyway.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicUsize;

    use datafusion_common::exec_err;

    use super::*;

    #[test]
    fn results_are_in_the_order_of_the_items() {
        for threads in [0, 1, 3, 16] {
            let workers = Workers::new(threads, &|| Ok(()));
            for items in [0, 1, 2, 100] {
                let squares = workers.map((0..items).collect(), |i| Ok(i * i));
                let expected: Vec<usize> = (0..items).map(|i| i * i).collect();
                assert_eq!(squares.expect("no error"), expected);
            }
        }
    }

    #[test]
    fn an_error_or_a_cancelled_query_ends_the_work() {
        for threads in [1, 4] {
            let begun = AtomicUsize::new(0);
            let fail = |item: usize| {
                begun.fetch_add(1, Ordering::Relaxed);
                if item == 10 {
                    return exec_err!("item 10");
                }
                Ok(())
            };
            let workers = Workers::new(threads, &|| Ok(()));
            let error = workers.map((0..10_000).collect(), fail).expect_err("fails");
            assert!(error.to_string().contains("item 10"));
            assert!(begun.load(Ordering::Relaxed) < 10_000);
            let checks = AtomicUsize::new(0);
            let cancel = || match checks.fetch_add(1, Ordering::Relaxed) {
                20.. => exec_err!("cancelled"),
                _ => Ok(()),
            };
            let workers = Workers::new(threads, &cancel);
            assert!(workers.map(vec![(); 1000], |()| Ok(())).is_err());
            assert!(checks.load(Ordering::Relaxed) < 30);
        }
    }

    #[test]
    fn ranges_cover_all_rows_once() {
        for threads in [1, 2, 7, 64] {
            let workers = Workers::new(threads, &|| Ok(()));
            for rows in [0, 1, STEP, 4 * STEP + 3, 100 * STEP + 17] {
                let ranges = workers.ranges(rows, 64);
                assert!(ranges.len() <= threads);
                assert!(ranges.iter().all(|range| range.start.is_multiple_of(64)));
                let all: usize = ranges.iter().map(std::iter::ExactSizeIterator::len).sum();
                assert_eq!(all, rows);
                assert!(ranges.windows(2).all(|pair| pair[0].end == pair[1].start));
            }
        }
    }
}
