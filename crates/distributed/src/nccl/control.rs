//! The channel between the ranks: it carries no tensors, but what each is about to call, signs of life, and the first failure.
//!
//! All ranks have a connection to rank 0, which decides: every rank learns the same failure.

use std::fmt;
use std::io::Read;
use std::net::Shutdown;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use crate::nccl::clock::Clock;
use crate::nccl::failure::{Failure, clean};
use crate::nccl::rendezvous::{Link, is_early};
use crate::nccl::world::World;

/// From one sign of life to the next.
const BEAT: Duration = Duration::from_millis(100);
/// How often bounds are looked at.
const TICK: Duration = Duration::from_millis(20);
/// The time that a rank allows the others beyond their bounds: to send what they have to say, or to close.
const GRACE: Duration = Duration::from_secs(1);
/// Between fields of a call.
pub(crate) const FIELD: char = '\x1f';
/// Between a call and a rank's reason not to make it.
const REFUSED: char = '\x1e';

/// This rank's end of the channel.
pub(crate) struct Control {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
}

/// Work to do meanwhile: what the watch looks at each time, and what a failure sets off.
pub(crate) trait Watched: Send + Sync {
    /// Returns a failure of this rank's own. `now` is the time of [`Control::now`].
    fn look(&self, now: Instant) -> Option<String>;
    /// Ends what is under way; must not wait.
    fn abort(&self);
}

struct Shared {
    world: World,
    /// On rank 0 those to all others, on these the one to rank 0.
    links: Vec<Link>,
    state: Mutex<State>,
    changed: Condvar,
    watched: OnceLock<Arc<dyn Watched>>,
    /// Each thread looks at it in each pass.
    clock: Clock,
}

#[derive(Default)]
struct State {
    failure: Option<Failure>,
    /// A failure that rank 0 has been told, which is to decide before it counts as silent.
    reported: Option<(Failure, Instant)>,
    /// How many calls all ranks have agreed on.
    agreed: u64,
    /// The first rank that does not make the last of these, and its reason.
    refused: Option<(usize, String)>,
    /// On rank 0, the call that each rank has made and waits with, since when.
    calls: Vec<Option<(String, Instant)>>,
    /// Ranks that make no more calls.
    left: Vec<usize>,
    /// Those of them that have got all messages.
    closed: Vec<usize>,
    closing: bool,
}

impl Control {
    pub(crate) fn new(world: &World, links: Vec<Link>) -> std::io::Result<Control> {
        for Link { stream, .. } in &links {
            stream.set_nodelay(true)?;
            stream.set_read_timeout(Some(TICK))?;
            stream.set_write_timeout(Some(GRACE))?;
        }
        let shared = Arc::new(Shared {
            world: world.clone(),
            state: Mutex::new(State {
                calls: vec![None; world.ranks],
                ..State::default()
            }),
            links,
            changed: Condvar::new(),
            watched: OnceLock::new(),
            clock: Clock::new((world.silence.min(world.timeout) / 2).max(BEAT)),
        });
        let mut control = Control {
            shared: shared.clone(),
            threads: Vec::new(),
        };
        for at in 0..=shared.links.len() {
            let shared = shared.clone();
            let name = format!("warptile watch {at}");
            let thread = thread::Builder::new().name(name);
            let thread = thread.spawn(move || match shared.links.get(at) {
                Some(link) => shared.listen(link),
                None => shared.watch(),
            })?;
            control.threads.push(thread);
        }
        Ok(control)
    }

    /// Sets what is watched, once.
    pub(crate) fn watch(&self, watched: Arc<dyn Watched>) {
        if self.shared.watched.set(watched.clone()).is_ok() && self.failure().is_some() {
            watched.abort();
        }
    }

    /// The time by which bounds count: it does not pass while this process stands still.
    pub(crate) fn now(&self) -> Instant {
        self.shared.clock.now()
    }

    /// The failure of the group.
    pub(crate) fn failure(&self) -> Option<Failure> {
        self.shared.state().failure.clone()
    }

    pub(crate) fn check(&self) -> Result<(), Failure> {
        self.failure().map_or(Ok(()), Err)
    }

    /// Waits until all ranks have made this call, at most as long as the world allows. With a reason why this rank does not make it, none
    /// does. Returns the first rank with a reason.
    pub(crate) fn agree(
        &self,
        call: &str,
        why_not: Option<&str>,
    ) -> Result<Option<(usize, String)>, Failure> {
        let refused = why_not.map(|why| format!("{call}{REFUSED}{why}"));
        let call = clean(refused.as_deref().unwrap_or(call));
        let shared = &self.shared;
        let World { rank, timeout, .. } = shared.world;
        let wanted = shared.state().agreed + 1;
        match rank {
            0 => shared.called(0, &call),
            _ => shared.tell(&format!("call\t{call}")),
        }
        // Rank 0's own bound is the timeout.
        let until = self.now() + timeout + 2 * GRACE;
        let mut state = shared.state();
        loop {
            if let Some(failure) = &state.failure {
                return Err(failure.clone());
            }
            if state.agreed >= wanted {
                return Ok(state.refused.take());
            }
            if rank > 0 && state.left.contains(&0) {
                drop(state);
                return Err(self.fail(closed(0)));
            }
            if self.now() > until {
                drop(state);
                return Err(self.fail(Failure::Late {
                    ranks: vec![0],
                    waited: timeout,
                }));
            }
            state = shared.wait(state);
        }
    }

    /// Tells the others that this rank makes no more calls.
    pub(crate) fn leave(&self) {
        self.shared.tell("leave");
    }

    /// Tells the others that this rank has got all messages: it may end its connection.
    pub(crate) fn close(&self) {
        self.shared.tell("close");
    }

    /// Reports a failure of this rank, and returns the one that all ranks report.
    pub(crate) fn fail(&self, failure: Failure) -> Failure {
        let shared = &self.shared;
        shared.report(failure.clone());
        let until = self.now() + shared.world.silence + GRACE;
        let mut state = shared.state();
        while self.now() < until {
            if let Some(failure) = &state.failure {
                return failure.clone();
            }
            state = shared.wait(state);
        }
        failure
    }
}

impl Drop for Control {
    fn drop(&mut self) {
        self.shared.state().closing = true;
        // The threads read until the others have closed as well, or for a while: unread lines would reset the connection, and the other
        // side would lose what it has not read.
        for link in &self.shared.links {
            let _ = link.stream.shutdown(Shutdown::Write);
        }
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wait<'a>(&self, state: MutexGuard<'a, State>) -> MutexGuard<'a, State> {
        let waited = self.changed.wait_timeout(state, TICK);
        waited.unwrap_or_else(PoisonError::into_inner).0
    }

    /// Sends a line over all links. One that is broken is noticed by its reader.
    fn tell(&self, line: &str) {
        for link in &self.links {
            let _ = link.say(line);
        }
    }

    /// Reads a link until it ends.
    fn listen(&self, link: &Link) {
        let (mut buffer, mut chunk) = (Vec::new(), [0; 4096]);
        let mut heard = self.clock.now();
        let mut said = heard;
        let mut closing_since = None;
        loop {
            let read = (&link.stream).read(&mut chunk);
            let now = self.clock.now();
            match read {
                Ok(0) => return self.gone(link.rank, "its connection has ended".to_owned()),
                Ok(len) => {
                    heard = now;
                    buffer.extend_from_slice(&chunk[..len]);
                    while let Some(end) = buffer.iter().position(|byte| *byte == b'\n') {
                        let line: Vec<u8> = buffer.drain(..=end).collect();
                        self.hear(link.rank, String::from_utf8_lossy(&line[..end]).as_ref());
                    }
                }
                Err(error) if is_early(error.kind()) => {}
                Err(error) => return self.gone(link.rank, error.to_string()),
            }
            let silence = self.world.silence;
            if now.saturating_duration_since(heard) > silence {
                self.gone(link.rank, format!("no sign of life for {silence:?}"));
                heard = now;
            }
            if now.saturating_duration_since(said) >= BEAT {
                let _ = link.say("alive");
                said = now;
            }
            if self.state().closing
                && now.saturating_duration_since(*closing_since.get_or_insert(now)) > GRACE
            {
                return;
            }
        }
    }

    /// Looks at bounds until the group is closed.
    fn watch(&self) {
        while !self.state().closing {
            thread::sleep(TICK);
            let now = self.clock.now();
            let is_past = |since: Instant, bound| now.saturating_duration_since(since) > bound;
            let timeout = self.world.timeout;
            let (mut late, mut undecided) = (None, None);
            {
                let state = self.state();
                if state.failure.is_some() {
                    continue;
                }
                if { state.calls.iter().flatten() }.any(|(_, since)| is_past(*since, timeout)) {
                    let ranks = (0..self.world.ranks).filter(|rank| state.calls[*rank].is_none());
                    late = Some(Failure::Late {
                        ranks: ranks.collect(),
                        waited: timeout,
                    });
                }
                if let Some((failure, since)) = &state.reported
                    && is_past(*since, self.world.silence)
                {
                    undecided = Some(failure.clone());
                }
            }
            if let Some(failure) = late.or(undecided) {
                self.settle(failure);
            } else if let Some(why) = self.watched.get().and_then(|watched| watched.look(now)) {
                self.report(Failure::Failed {
                    rank: self.world.rank,
                    why,
                });
            }
        }
    }

    /// A line from another rank.
    fn hear(&self, from: usize, line: &str) {
        let (word, rest) = line.split_once('\t').unwrap_or((line, ""));
        match word {
            "call" if self.world.rank == 0 => self.called(from, rest),
            "agreed" if from == 0 => {
                let refused = rest.split_once('\t').map(|(rank, why)| (rank.parse(), why));
                if let Some((Ok(rank), why)) = refused {
                    self.state().refused = Some((rank, why.to_owned()));
                }
                self.state().agreed += 1;
                self.changed.notify_all();
            }
            "leave" => {
                self.state().left.push(from);
                self.changed.notify_all();
                self.settle_calls();
            }
            "close" => self.state().closed.push(from),
            "fail" => {
                if let Some(failure) = Failure::from_line(rest) {
                    self.settle(failure);
                }
            }
            _ => {}
        }
    }

    /// Rank 0: notes that a rank has made a call.
    fn called(&self, rank: usize, call: &str) {
        self.state().calls[rank] = Some((call.to_owned(), self.clock.now()));
        self.settle_calls();
    }

    /// Rank 0: compares the calls that ranks have made.
    fn settle_calls(&self) {
        let mut state = self.state();
        let mut calls = { state.calls.iter().enumerate() }
            .filter_map(|(rank, call)| Some((rank, asked(&call.as_ref()?.0).0)));
        let Some(first) = calls.next() else { return };
        let different = calls.find(|(_, call)| *call != first.1);
        let failure = match (different, state.left.first()) {
            (Some(other), _) => Some(disagree(first, other)),
            (None, Some(rank)) => Some(closed(*rank)),
            (None, None) => None,
        };
        if let Some(failure) = failure {
            drop(state);
            return self.settle(failure);
        }
        if state.calls.iter().all(Option::is_some) {
            let calls = state.calls.iter().flatten().enumerate();
            let mut refused =
                calls.filter_map(|(rank, (call, _))| Some((rank, asked(call).1?.to_owned())));
            state.refused = refused.next();
            let answer = match &state.refused {
                Some((rank, why)) => format!("agreed\t{rank}\t{why}"),
                None => "agreed".to_owned(),
            };
            state.calls.fill(None);
            // Before rank 0 knows. It may leave right after the call, and others would take that for a rank that does not make it.
            self.tell(&answer);
            state.agreed += 1;
            drop(state);
            self.changed.notify_all();
        }
    }

    fn gone(&self, rank: usize, how: String) {
        let state = self.state();
        if !state.closing && !state.closed.contains(&rank) {
            drop(state);
            self.settle(Failure::Lost { rank, how });
        }
    }

    /// Asks rank 0 to decide on a failure of this rank.
    fn report(&self, failure: Failure) {
        if self.world.rank == 0 {
            return self.settle(failure);
        }
        let mut state = self.state();
        if state.failure.is_none() && state.reported.is_none() {
            state.reported = Some((failure.clone(), self.clock.now()));
            drop(state);
            self.tell(&format!("fail\t{}", failure.to_line()));
        }
    }

    /// Makes a failure that of the group, if it is the first.
    fn settle(&self, failure: Failure) {
        // As the others read it: without lines and fractions of a millisecond.
        let line = failure.to_line();
        let failure = Failure::from_line(&line).unwrap_or(failure);
        let mut state = self.state();
        if state.failure.is_some() {
            return;
        }
        if self.world.rank == 0 {
            // Before a caller knows, who may close the connections at once.
            self.tell(&format!("fail\t{line}"));
        }
        state.failure = Some(failure);
        drop(state);
        self.changed.notify_all();
        if let Some(watched) = self.watched.get() {
            watched.abort();
        }
    }
}

fn closed(rank: usize) -> Failure {
    Failure::Lost {
        rank,
        how: "it has closed its group".to_owned(),
    }
}

/// A call, and the reason of a rank that does not make it.
fn asked(call: &str) -> (&str, Option<&str>) {
    { call.split_once(REFUSED) }.map_or((call, None), |(call, why)| (call, Some(why)))
}

/// The first fields in which two calls differ.
fn disagree(first: (usize, &str), other: (usize, &str)) -> Failure {
    let mut fields = first.1.split(FIELD).zip(other.1.split(FIELD));
    let (one, two) = { fields.find(|(one, two)| one != two) }.unwrap_or((first.1, other.1));
    Failure::Disagree {
        ranks: [first.0, other.0],
        calls: [one.to_owned(), two.to_owned()],
    }
}

impl fmt::Debug for Control {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Control({:?})", self.shared.world)
    }
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead, BufReader, Write};
    use std::net::{TcpListener, TcpStream};

    use super::*;

    /// Rank 0 of several, and the other ends of its links.
    fn rank_0(ranks: usize) -> (Control, Vec<TcpStream>) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let connected = (1..ranks).map(|rank| {
            let near = TcpStream::connect(address).unwrap();
            (Link::new(rank, near), listener.accept().unwrap().0)
        });
        let (links, others) = connected.unzip();
        let world = World::new(0, ranks, address.to_string());
        (Control::new(&world, links).unwrap(), others)
    }

    /// Calls `wait` on rank 0 while a line to rank 2 cannot be sent, which `cause` makes due.
    fn outlasts_a_line(
        wait: impl Fn(&Control) + Sync,
        is_ready: impl Fn(&State) -> bool,
        cause: impl FnOnce(&mut [TcpStream]),
    ) {
        let (control, mut others) = rank_0(3);
        writeln!(others[1], "call\tto compute").unwrap();
        thread::scope(|scope| {
            let waiting = scope.spawn(|| wait(&control));
            while !is_ready(&control.shared.state()) {
                thread::sleep(Duration::from_millis(1));
            }
            let line = control.shared.links[1].line.lock().unwrap();
            cause(&mut others);
            thread::sleep(Duration::from_millis(500));
            assert!(!waiting.is_finished(), "rank 0 goes on before rank 2 can");
            drop(line);
        });
    }

    #[test]
    fn rank_0_makes_a_call_after_it_has_told_all() {
        outlasts_a_line(
            |control| assert_eq!(control.agree("to compute", None), Ok(None)),
            |state| state.calls[0].is_some() && state.calls[2].is_some(),
            |others| writeln!(others[0], "call\tto compute").unwrap(),
        );
    }

    /// Reasons may have several lines, such as those why no kernel applies.
    #[test]
    fn rank_0_reports_what_the_others_read() {
        for failure in [
            Failure::Failed {
                rank: 0,
                why: "no kernel:\n  mma: no\n".to_owned(),
            },
            Failure::Late {
                ranks: vec![1],
                waited: Duration::from_micros(2500),
            },
        ] {
            let (control, others) = rank_0(2);
            let reported = control.fail(failure);
            let lines = BufReader::new(&others[0]).lines();
            let failed = lines.map_while(Result::ok).find_map(|line| {
                let (word, rest) = line.split_once('\t')?;
                (word == "fail").then(|| Failure::from_line(rest))?
            });
            assert_eq!(failed.as_ref(), Some(&reported));
            assert_eq!(control.failure(), failed);
        }
    }

    #[test]
    fn rank_0_reports_a_failure_after_it_has_told_all() {
        outlasts_a_line(
            |control| drop(control.agree("to compute", None).unwrap_err()),
            |state| state.calls[0].is_some() && state.calls[2].is_some(),
            |others| writeln!(others[0], "call\tto wait").unwrap(),
        );
    }
}
