//! Work on several threads.

use crate::error::EngineError;

/// Calls `work` with each item, each but the first on a thread of its own. Returns what it returned, in order.
pub(crate) fn in_parallel<T: Send, R: Send>(
    mut items: impl Iterator<Item = T>,
    work: impl Fn(T) -> R + Sync,
) -> Result<Vec<R>, EngineError> {
    let Some(first) = items.next() else {
        return Ok(vec![]);
    };
    let work = &work;
    std::thread::scope(|scope| {
        let spawn = |item| {
            std::thread::Builder::new()
                .name("rmq-build".to_owned())
                .spawn_scoped(scope, move || work(item))
                .map_err(|error| EngineError::Thread(error.to_string()))
        };
        let others = items.map(spawn).collect::<Result<Vec<_>, _>>()?;
        let mut done = vec![work(first)];
        for other in others {
            done.push(
                other
                    .join()
                    .unwrap_or_else(|panic| std::panic::resume_unwind(panic)),
            );
        }
        Ok(done)
    })
}
