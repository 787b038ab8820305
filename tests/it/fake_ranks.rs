//! Copies of order statistics on devices that are threads: sorted rows of each range instead of a wavelet matrix.

use std::sync::Arc;

use rmq_engine::{EngineError, RankIndex, RankLevels};

use crate::fake::Fake;

/// The ranks of rows.
#[derive(Debug)]
pub struct FakeRanks {
    fake: Arc<Fake>,
    ranks: Vec<u32>,
}

impl FakeRanks {
    /// Reads the ranks level by level.
    ///
    /// # Errors
    /// That of the step that is to fail.
    pub fn copy(fake: &Arc<Fake>, levels: RankLevels<'_>) -> Result<Self, EngineError> {
        fake.join_step()?;
        let mut ranks = vec![0; levels.rows];
        // The place of each row on a level.
        let mut places: Vec<usize> = (0..levels.rows).collect();
        let per_level = levels.blocks.len() / levels.zeros.len();
        for blocks in levels.blocks.chunks(per_level) {
            let words = blocks.iter().flat_map(|block| &block[1..]);
            let bits = words.flat_map(|word| (0..64).map(move |bit| word >> bit & 1 == 1));
            let bits: Vec<bool> = bits.take(levels.rows).collect();
            let mut next: Vec<usize> = (0..levels.rows).collect();
            next.sort_by_key(|place| bits[*place]);
            let mut on_next = vec![0; levels.rows];
            next.iter()
                .enumerate()
                .for_each(|(on, place)| on_next[*place] = on);
            for (rank, place) in ranks.iter_mut().zip(&mut places) {
                *rank = *rank << 1 | u32::from(bits[*place]);
                *place = on_next[*place];
            }
        }
        let fake = Arc::clone(fake);
        Ok(Self { fake, ranks })
    }

    /// Answers from the sorted ranks of each range.
    fn answer(
        &self,
        (left, right): (&[i64], &[i64]),
        targets: &[u32],
        answers: &mut [u32],
        answer: impl Fn(&[u32], u32) -> u32,
    ) -> Result<(), EngineError> {
        self.fake.join_step()?;
        self.fake.batches.lock().unwrap().push(left.len());
        for (i, found) in answers.iter_mut().enumerate() {
            let begin = left[i].clamp(0, self.ranks.len() as i64) as usize;
            let end = right[i]
                .saturating_add(1)
                .clamp(begin as i64, self.ranks.len() as i64);
            let mut rows = self.ranks[begin..end as usize].to_vec();
            rows.sort_unstable();
            *found = answer(&rows, targets[i]);
        }
        Ok(())
    }
}

impl RankIndex for FakeRanks {
    fn count_below(
        &self,
        left: &[i64],
        right: &[i64],
        ranks: &[u32],
        counts: &mut [u32],
    ) -> Result<(), EngineError> {
        self.answer((left, right), ranks, counts, |rows, rank| {
            rows.partition_point(|row| *row < rank) as u32
        })
    }

    fn nth_smallest(
        &self,
        left: &[i64],
        right: &[i64],
        smaller: &[u32],
        ranks: &mut [u32],
    ) -> Result<(), EngineError> {
        self.answer((left, right), smaller, ranks, |rows, smaller| {
            let row = rows.get(smaller as usize);
            row.copied().unwrap_or(u32::MAX)
        })
    }

    fn device_bytes(&self) -> usize {
        self.ranks.len() * size_of::<u32>()
    }
}
