//! What memory allows: how fast threads copy memory, and how fast they scatter rows to groups.

use std::hint::black_box;
use std::thread;
use std::time::Instant;

use rmq_bench::memory::{MappedSlice, Pages};
use rmq_bench::random::mix;

use crate::data::SYMBOLS;

/// Bytes of the source, for all threads together.
const BYTES: usize = 1 << 30;

/// Bytes a second, of the source.
#[derive(Debug, Clone, Copy)]
pub struct MemoryLimits {
    /// Copying into memory that has been written before.
    pub copy: f64,
    /// Copying into memory fresh from the kernel, in its default pages.
    pub fresh_copy: f64,
    /// Writing numbers of 8 bytes to the ends of [`SYMBOLS`] groups a thread.
    pub scatter: f64,
}

impl MemoryLimits {
    /// Measures with this number of threads, each on a part of its own; the best of five rounds.
    pub fn measure(threads: usize) -> Self {
        let len = BYTES / 8;
        let mut source = MappedSlice::<u64>::zeroed(len, Pages::Huge);
        let mut target = MappedSlice::<u64>::zeroed(len, Pages::Huge);
        let share = len.div_ceil(threads);
        in_parts(&mut source, &mut target, share, |source, target| {
            for (i, number) in source.iter_mut().enumerate() {
                *number = mix(i as u64);
            }
            target.fill(1);
        });
        let best = |work: &mut dyn FnMut()| {
            let seconds = (0..5).map(|_| {
                let started = Instant::now();
                work();
                started.elapsed().as_secs_f64()
            });
            BYTES as f64 / seconds.fold(f64::INFINITY, f64::min)
        };
        let copy = best(&mut || {
            in_parts(&mut source, &mut target, share, |source, target| {
                target.copy_from_slice(source);
            });
        });
        let fresh_copy = best(&mut || {
            in_parts(&mut source, &mut target, share, |source, _| {
                black_box(source.to_vec());
            });
        });
        let scatter = best(&mut || {
            in_parts(&mut source, &mut target, share, scatter);
        });
        Self {
            copy,
            fresh_copy,
            scatter,
        }
    }

    /// Returns the seconds in which memory can be copied once and scattered once.
    pub fn seconds(&self, copied: usize, scattered: usize) -> f64 {
        copied as f64 / self.copy + scattered as f64 / self.scatter
    }
}

/// Runs `work` on equal parts of both slices, each part on a thread.
fn in_parts(
    source: &mut [u64],
    target: &mut [u64],
    share: usize,
    work: impl Fn(&mut [u64], &mut [u64]) + Sync,
) {
    thread::scope(|scope| {
        for (source, target) in source.chunks_mut(share).zip(target.chunks_mut(share)) {
            let work = &work;
            scope.spawn(move || work(source, target));
        }
    });
}

/// Writes each number to the next place of the group in its lowest bits.
fn scatter(source: &mut [u64], target: &mut [u64]) {
    let group = |number: u64| ((number & 0xFFFF) as usize * SYMBOLS) >> 16;
    let room = target.len() / SYMBOLS;
    let mut filled = vec![0; SYMBOLS];
    for number in source {
        let group = group(*number);
        target[group * room + filled[group]] = *number;
        filled[group] = if filled[group] + 1 < room {
            filled[group] + 1
        } else {
            0
        };
    }
}
