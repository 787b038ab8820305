//! What crosses between the libraries of one process as a number, in place of its bytes.
//!
//! It is taken by the first reader. What nobody has read after a minute is dropped by the next number.

use std::collections::VecDeque;
use std::hash::{BuildHasher, RandomState};
use std::sync::{LazyLock, Mutex, PoisonError};
use std::time::{Duration, Instant};

use datafusion::common::{Result, exec_err};

/// How long something waits for its reader, which in a query comes at once.
const LIFETIME: Duration = Duration::from_mins(1);

/// How the bytes begin, with what no other process has.
static START: LazyLock<[u8; 16]> = LazyLock::new(|| {
    let process = RandomState::new().hash_one(std::process::id());
    let mut start = *b"rmq here________";
    start[8..].copy_from_slice(&process.to_le_bytes());
    start
});

/// Things of one kind by number.
#[derive(Debug)]
pub struct Numbers<T> {
    waiting: Mutex<Waiting<T>>,
}

#[derive(Debug)]
struct Waiting<T> {
    /// The oldest first.
    things: VecDeque<(u64, Instant, T)>,
    /// The last number.
    last: u64,
}

impl<T> Default for Numbers<T> {
    fn default() -> Self {
        let waiting = Waiting {
            things: VecDeque::new(),
            last: 0,
        };
        Self {
            waiting: Mutex::new(waiting),
        }
    }
}

impl<T> Numbers<T> {
    /// Writes the number of a thing.
    pub fn write(&self, thing: T, bytes: &mut Vec<u8>) {
        let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        let mut late = vec![];
        while waiting
            .things
            .front()
            .is_some_and(|(_, since, _)| since.elapsed() > LIFETIME)
        {
            late.extend(waiting.things.pop_front());
        }
        waiting.last += 1;
        let number = waiting.last;
        waiting.things.push_back((number, Instant::now(), thing));
        drop(waiting);
        bytes.extend(*START);
        bytes.extend(number.to_le_bytes());
    }

    /// Takes the thing whose number was written. Errors call it `what`.
    pub fn take(&self, bytes: &[u8], what: &str) -> Result<T> {
        let number = bytes.strip_prefix(START.as_slice());
        let number = number.and_then(|number| number.try_into().ok());
        let Some(number) = number.map(u64::from_le_bytes) else {
            return exec_err!("the bytes of {what} were written by another process or library");
        };
        let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        let place = waiting
            .things
            .iter()
            .position(|(known, ..)| *known == number);
        if let Some((.., thing)) = place.and_then(|place| waiting.things.remove(place)) {
            return Ok(thing);
        }
        exec_err!(
            "{what} crosses from one library to the other as a number, which can be read once and within a minute: plan the \
             query again"
        )
    }
}
