//! Sessions that Python lends to the ADBC driver. Options of a database are texts, so a session is named by a number.

use std::collections::HashMap;
use std::sync::{Arc, LazyLock, Mutex, PoisonError};

use crate::shared::Shared;

/// The sessions that are lent and not taken yet.
#[derive(Default)]
struct Lent {
    sessions: HashMap<u64, Arc<Shared>>,
    /// The number of the last one.
    last: u64,
}

static LENT: LazyLock<Mutex<Lent>> = LazyLock::new(Mutex::default);

/// Lends a session to the one database that is opened with the number.
pub fn lend(shared: &Arc<Shared>) -> u64 {
    let mut lent = LENT.lock().unwrap_or_else(PoisonError::into_inner);
    lent.last += 1;
    let number = lent.last;
    lent.sessions.insert(number, Arc::clone(shared));
    number
}

pub fn take(number: u64) -> Option<Arc<Shared>> {
    let mut lent = LENT.lock().unwrap_or_else(PoisonError::into_inner);
    lent.sessions.remove(&number)
}
