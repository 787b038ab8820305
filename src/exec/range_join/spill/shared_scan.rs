//! One scan of a build side's pieces for all partitions that ask: a piece that is in memory is asked for all of them.
//!
//! ```text
//!   pieces on disk     0   1   2   3   4   5   0   1   2   3 ...    one is in memory at a time
//!   partition A        └───────────────────┘
//!   partition B                └───────────────────────┘            joins where the scan is
//! ```
//!
//! 1. A partition hands over the rows that it has gathered, and waits.
//! 2. A task of its own goes through the pieces in a circle. Between two pieces, those who have come join.
//! 3. Whoever has met each piece once gets its answers. When nobody is left, the task ends; the last piece stays in memory.
//!
//! So where all partitions ask, the pieces are read as often as if one partition had all rows.

use std::fmt;
use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use datafusion::common::runtime::SpawnedTask;
use datafusion::common::{DataFusionError, Result, internal_datafusion_err};
use futures::future::{Either, join_all, select};
use tokio::sync::oneshot;

use crate::exec::range_join::build::collect::RowOrder;
use crate::exec::range_join::build::side::BuildSide;
use crate::exec::range_join::spill::probe::{Asking, Reading, SpilledSide, Wanted};

/// The scan of one build side.
pub(crate) struct SharedScan {
    state: Mutex<State>,
    /// What the scan has in memory; it alone has this while it runs.
    loaded: tokio::sync::Mutex<Loaded>,
}

#[derive(Default)]
struct State {
    /// Those who join at the next piece.
    waiting: Vec<Request>,
    /// Whether there is a task that goes through the pieces.
    is_running: bool,
    /// That task: dropping this would end it.
    task: Option<SpawnedTask<()>>,
}

struct Loaded {
    /// Memory for what is built at a time.
    room: usize,
    /// The piece that was asked last, if it was built as a whole.
    last: Option<(usize, Arc<BuildSide>)>,
}

/// What a partition asks.
struct Request {
    asking: Asking,
    /// Which pieces it has met.
    met: Vec<bool>,
    reply: oneshot::Sender<Result<Asking>>,
}

impl Request {
    /// Asks what was built of a piece; `None` if nobody waits for the answer any more.
    async fn ask(
        &mut self,
        wanted: &[Wanted],
        part: &BuildSide,
        first_row: RowOrder,
    ) -> Option<Result<()>> {
        let asked = pin!(self.asking.ask(wanted, part, first_row));
        match select(asked, pin!(self.reply.closed())).await {
            Either::Left((asked, _)) => Some(asked),
            Either::Right(_) => None,
        }
    }
}

impl fmt::Debug for SharedScan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SharedScan").finish_non_exhaustive()
    }
}

impl SharedScan {
    /// Nothing has been read; there is so much memory for a piece.
    pub(crate) fn new(room: usize) -> Self {
        Self {
            state: Mutex::default(),
            loaded: tokio::sync::Mutex::new(Loaded { room, last: None }),
        }
    }

    /// Asks all pieces.
    pub(crate) async fn ask(side: &Arc<SpilledSide>, asking: Asking) -> Result<Asking> {
        let (reply, answer) = oneshot::channel();
        let request = Request {
            asking,
            met: vec![false; side.pieces().len()],
            reply,
        };
        {
            let mut state = side.scan().state();
            state.waiting.push(request);
            if !state.is_running {
                state.is_running = true;
                state.task = Some(SpawnedTask::spawn(run(Arc::clone(side))));
            }
        }
        let ended =
            |_| internal_datafusion_err!("the scan of a range join's build side ended early");
        answer.await.map_err(ended)?
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // Nothing is left half done.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Those who ask now, with those who have come since; none if the scan is to end.
    fn join(&self, mut requests: Vec<Request>) -> Vec<Request> {
        let mut state = self.state();
        requests.append(&mut state.waiting);
        requests.retain(|request| !request.reply.is_closed());
        state.is_running = !requests.is_empty();
        requests
    }
}

/// Answers those who ask until nobody is left.
async fn run(side: Arc<SpilledSide>) {
    let mut unfinished = Unfinished(Some(side.scan()));
    let mut loaded = side.scan().loaded.lock().await;
    scan(&side, &mut loaded).await;
    unfinished.0 = None;
    side.give_back();
}

/// Lets go of those who wait where a scan ends early, by a panic or with the runtime: they get an error, and nothing keeps the build side.
struct Unfinished<'a>(Option<&'a SharedScan>);

impl Drop for Unfinished<'_> {
    fn drop(&mut self) {
        if let Some(scan) = self.0 {
            let mut state = scan.state();
            state.is_running = false;
            state.waiting.clear();
        }
    }
}

async fn scan(side: &Arc<SpilledSide>, loaded: &mut Loaded) {
    let pieces = side.pieces().len();
    let (mut next, mut requests) = (0, vec![]);
    loop {
        requests = side.scan().join(requests);
        if requests.is_empty() {
            return;
        }
        // Those who have come ask what is in memory before the next piece is read.
        let last = loaded.last.as_ref().map(|(last, _)| *last);
        let has_not_met = |piece: &usize| requests.iter().any(|r: &Request| !r.met[*piece]);
        let piece = last.filter(has_not_met).unwrap_or(next);
        next = (piece + 1) % pieces.max(1);
        requests = ask_piece(side, loaded, piece, requests).await;
        let (done, others): (Vec<_>, Vec<_>) = requests
            .into_iter()
            .partition(|request| request.met.iter().all(|met| *met));
        requests = others;
        if !done.is_empty() {
            side.give_back();
        }
        for request in done {
            // Whoever does not wait any more needs no answer.
            let _ = request.reply.send(Ok(request.asking));
        }
    }
}

/// Asks one piece for all who have not met it yet. Those who met an error get it and are left out.
async fn ask_piece(
    side: &Arc<SpilledSide>,
    loaded: &mut Loaded,
    number: usize,
    requests: Vec<Request>,
) -> Vec<Request> {
    let Some(piece) = side.pieces().get(number) else {
        return requests;
    };
    let (mut asking, mut others) = (vec![], vec![]);
    for mut request in requests {
        let has_met = std::mem::replace(&mut request.met[number], true);
        match request.asking.wanted(piece).filter(|_| !has_met) {
            Some(wanted) => asking.push((request, Arc::from(wanted))),
            None => others.push(request),
        }
    }
    if asking.is_empty() {
        return others;
    }
    match &loaded.last {
        Some((last, built)) if *last == number => {
            asking = ask_part(asking, built, piece.first_row).await;
        }
        _ => {
            // Memory for one piece at a time.
            loaded.last = None;
            match side.read(piece) {
                Ok(mut reading) => loop {
                    let load = load_unless_gone(side, &mut reading, &mut loaded.room, &mut asking);
                    let Some(part) = load.await else {
                        return others;
                    };
                    match part {
                        Ok(Some((part, first_row))) => {
                            let part = Arc::new(part);
                            asking = ask_part(asking, &part, first_row).await;
                            if reading.is_done() && first_row == piece.first_row {
                                loaded.last = Some((number, part));
                            }
                        }
                        Ok(None) => break,
                        Err(error) => return fail(asking, error, others),
                    }
                },
                Err(error) => return fail(asking, error, others),
            }
        }
    }
    others.extend(asking.into_iter().map(|(request, _)| request));
    others
}

/// Builds the next part of a piece; `None` if nobody waits for it any more.
async fn load_unless_gone(
    side: &SpilledSide,
    reading: &mut Reading,
    room: &mut usize,
    asking: &mut AskingPiece,
) -> Option<Result<Option<(BuildSide, RowOrder)>>> {
    let load = pin!(side.load(reading, room));
    let gone = join_all(asking.iter_mut().map(|(r, _)| r.reply.closed()));
    match select(load, gone).await {
        Either::Left((part, _)) => Some(part),
        Either::Right(_) => None,
    }
}

/// Those who ask a piece, and for which of their rows.
type AskingPiece = Vec<(Request, Arc<[Wanted]>)>;

/// Asks what was built of a piece for all at once; those who met an error get it and are left out.
async fn ask_part(asking: AskingPiece, part: &Arc<BuildSide>, first_row: RowOrder) -> AskingPiece {
    let tasks = asking.into_iter().map(|(mut request, wanted)| {
        let part = Arc::clone(part);
        SpawnedTask::spawn(async move {
            match request.ask(&wanted, &part, first_row).await? {
                Ok(()) => Some((request, wanted)),
                Err(error) => {
                    let _ = request.reply.send(Err(error));
                    None
                }
            }
        })
        .join_unwind()
    });
    // All are begun before one is waited for. A task that the runtime stopped took its request along.
    let tasks: Vec<_> = tasks.collect();
    let asked = join_all(tasks).await;
    asked
        .into_iter()
        .filter_map(|task| task.ok().flatten())
        .collect()
}

/// Tells all who ask a piece that it can't be read or built.
fn fail(asking: AskingPiece, error: DataFusionError, others: Vec<Request>) -> Vec<Request> {
    let error = Arc::new(error);
    for (request, _) in asking {
        let error = DataFusionError::Shared(Arc::clone(&error));
        let _ = request.reply.send(Err(error));
    }
    others
}
