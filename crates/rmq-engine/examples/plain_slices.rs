//! Range minima over plain Rust slices, without `DataFusion` and Arrow: the lowest and highest price of a year of
//! minutes, in a million windows of any length.
//!
//! ```sh
//! cargo run --release -p rmq-engine --no-default-features --example plain_slices
//! ```

use std::time::Instant;

use rmq_engine::{EngineError, Index};

const MINUTES: usize = 365 * 24 * 60;
const WINDOWS: usize = 1_000_000;

fn main() -> Result<(), EngineError> {
    let mut dice = Dice(2026);
    let mut price = 100.0_f32;
    let prices: Vec<f32> = (0..MINUTES)
        .map(|_| {
            price *= 1.0 + (dice.below(2001) as f32 - 1000.0) / 1e6;
            price
        })
        .collect();

    let start = Instant::now();
    let lows = Index::min(&prices)?;
    let highs = Index::max(&prices)?;
    println!(
        "Indexed {MINUTES} prices twice in {:.1?}; an index takes {:.2} bytes a price.",
        start.elapsed(),
        lows.index_bytes() as f64 / MINUTES as f64
    );

    // One query. Positions are minutes since the start of the year.
    let june = 151 * 24 * 60..181 * 24 * 60;
    if let (Some(low), Some(at), Some(high)) = (
        lows.value(june.clone()),
        lows.position(june.clone()),
        highs.value(june),
    ) {
        let (day, hour, minute) = (at / 1440 - 150, at / 60 % 24, at % 60);
        println!("June: between {low:.2} (on the {day}. at {hour:02}:{minute:02}) and {high:.2}.");
    }

    // A million queries at once, which is what the engine is built for.
    let (left, right): (Vec<i64>, Vec<i64>) = (0..WINDOWS)
        .map(|_| {
            let (a, b) = (dice.below(MINUTES) as i64, dice.below(MINUTES) as i64);
            (a.min(b), a.max(b))
        })
        .unzip();
    let mut low = vec![0.0; WINDOWS];
    let mut high = vec![0.0; WINDOWS];
    let mut at = vec![0; WINDOWS];
    let start = Instant::now();
    lows.values(&left, &right, &mut low)?;
    lows.positions(&left, &right, &mut at)?;
    highs.values(&left, &right, &mut high)?;
    println!(
        "{WINDOWS} windows, each with its lowest price, when that was, and its highest: {:.1?}.",
        start.elapsed()
    );

    let widest =
        (0..WINDOWS).max_by(|&a, &b| f32::total_cmp(&(high[a] / low[a]), &(high[b] / low[b])));
    if let Some(i) = widest {
        println!(
            "The widest: {:.2} to {:.2} in minutes {} to {}, lowest in minute {}.",
            low[i], high[i], left[i], right[i], at[i]
        );
    }
    Ok(())
}

/// SplitMix64.
struct Dice(u64);

impl Dice {
    /// In `0..limit`.
    fn below(&mut self, limit: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        ((u128::from(z ^ (z >> 31)) * limit as u128) >> 64) as usize
    }
}
