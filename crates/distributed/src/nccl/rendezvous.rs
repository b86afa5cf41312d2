//! How ranks find each other: each connects to rank 0, which tells all of them the id when all are there.

use std::io::{ErrorKind, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream, ToSocketAddrs};
use std::sync::{Mutex, PoisonError};
use std::thread::sleep;
use std::time::{Duration, Instant};

use crate::error::{Error, Result};
use crate::nccl::failure::clean;
use crate::nccl::world::World;

/// A connection to another rank, line by line.
#[derive(Debug)]
pub(crate) struct Link {
    pub(crate) rank: usize,
    pub(crate) stream: TcpStream,
    /// Held while a line is sent, which may take several writes.
    pub(crate) line: Mutex<()>,
}

/// How long a connection may take to say who it is. Others wait meanwhile.
const GREETING: Duration = Duration::from_secs(2);
/// How long one of several addresses may take to answer. The next one waits meanwhile.
const ATTEMPT: Duration = Duration::from_secs(2);
const PAUSE: Duration = Duration::from_millis(5);

/// Connects the ranks. `about` must be the same on all; `id` is asked on rank 0. Returns rank 0's id, and a link to rank 0, or on rank 0 to
/// each of the others.
pub(crate) fn meet(
    world: &World,
    about: &str,
    id: impl FnOnce() -> Result<[u8; 128]>,
) -> Result<([u8; 128], Vec<Link>)> {
    let deadline = Instant::now() + world.timeout;
    let hello = [
        "warptile",
        env!("CARGO_PKG_VERSION"),
        &world.job,
        &world.ranks.to_string(),
        about,
    ]
    .map(clean)
    .join("\t");
    if world.rank > 0 {
        return join(world, &hello, deadline);
    }
    let mut links = Vec::new();
    let gathered = gather(world, &hello, deadline, &mut links).and_then(|()| id());
    let line = match &gathered {
        Ok(id) => {
            let hex: String = id.iter().map(|byte| format!("{byte:02x}")).collect();
            format!("id\t{hex}")
        }
        Err(error) => format!("no\t{}", clean(&error.to_string())),
    };
    for link in &links {
        // A rank that is lost by now is found so later.
        let _ = link.say(&line);
    }
    links.sort_by_key(|link| link.rank);
    Ok((gathered?, links))
}

/// Rank 0: waits for all others.
fn gather(world: &World, hello: &str, deadline: Instant, links: &mut Vec<Link>) -> Result<()> {
    let failed = |what: String| Error::Rendezvous(format!("{what} ({})", world.address));
    let listener = listen(&world.address).map_err(|error| failed(error.to_string()))?;
    { listener.set_nonblocking(true) }.map_err(|error| failed(error.to_string()))?;
    while links.len() + 1 < world.ranks {
        if Instant::now() > deadline {
            let is_there = |rank: &usize| links.iter().any(|link| link.rank == *rank);
            let missing: Vec<_> = (1..world.ranks).filter(|rank| !is_there(rank)).collect();
            return Err(failed(format!(
                "ranks {missing:?} have not connected to rank 0 within {:?}",
                world.timeout
            )));
        }
        let stream = match listener.accept() {
            Ok((stream, _)) => stream,
            Err(error) if is_early(error.kind()) => {
                sleep(PAUSE);
                continue;
            }
            Err(error) => return Err(failed(error.to_string())),
        };
        let greeted = { stream.set_nonblocking(false) }.is_ok();
        let mut link = Link::new(0, stream);
        let until = Instant::now() + GREETING;
        let Some(line) = greeted.then(|| link.read_line(until).ok()).flatten() else {
            continue;
        };
        let Some((rank, theirs)) = line.split_once('\t') else {
            continue;
        };
        let fields: Vec<_> = theirs.split('\t').collect();
        match fields[..] {
            ["warptile", _, job, ..] if job == clean(&world.job) => {}
            _ => {
                let _ = link.say("no\tanother job meets here");
                continue;
            }
        }
        link.rank = rank.parse().unwrap_or(0);
        let is_new = links.iter().all(|known| known.rank != link.rank);
        let rank = link.rank;
        links.push(link);
        if theirs != hello {
            let [ours, theirs] = [hello, theirs].map(|line| line.replace('\t', " "));
            return Err(failed(format!(
                "rank {rank} is `{theirs}`, but rank 0 `{ours}`"
            )));
        }
        if rank >= world.ranks {
            return Err(failed(format!("rank {rank} is not one of {}", world.ranks)));
        }
        if !is_new || rank == 0 {
            return Err(failed(format!("rank {rank} of {} came twice", world.ranks)));
        }
    }
    Ok(())
}

/// Listens at all addresses of this host, or at the loopback address if the given one says so. A name does not: that of this host may
/// resolve to a loopback address here, and to another one elsewhere.
fn listen(address: &str) -> std::io::Result<TcpListener> {
    let mut addresses: Vec<_> = address.to_socket_addrs()?.collect();
    let host = address.rsplit_once(':').map_or(address, |(host, _)| host);
    let literal = host.trim_start_matches('[').trim_end_matches(']');
    let is_loopback = host.eq_ignore_ascii_case("localhost") || { literal.parse() }
        .is_ok_and(|address: IpAddr| address.is_loopback());
    if !is_loopback {
        let port = addresses.first().map_or(0, SocketAddr::port);
        addresses = vec![([0_u16; 8], port).into(), ([0_u8; 4], port).into()];
    }
    TcpListener::bind(&addresses[..])
}

/// Connects to the first of several addresses that answers.
fn connect(
    addresses: impl Iterator<Item = SocketAddr>,
    deadline: Instant,
) -> std::io::Result<TcpStream> {
    let mut last = std::io::Error::from(ErrorKind::AddrNotAvailable);
    for address in addresses {
        let left = deadline.saturating_duration_since(Instant::now());
        let stream = TcpStream::connect_timeout(&address, left.clamp(PAUSE, ATTEMPT));
        match stream.and_then(not_to_itself) {
            Ok(stream) => return Ok(stream),
            Err(error) => last = error,
        }
    }
    Err(last)
}

/// Refuses a connection to itself. A connection to a local port without a listener may be given that same port as its own end.
fn not_to_itself(stream: TcpStream) -> std::io::Result<TcpStream> {
    match stream.local_addr()? == stream.peer_addr()? {
        true => Err(ErrorKind::ConnectionRefused.into()),
        false => Ok(stream),
    }
}

/// Other ranks: connects to rank 0 and waits for the id.
fn join(world: &World, hello: &str, deadline: Instant) -> Result<([u8; 128], Vec<Link>)> {
    let failed = |what: String| {
        let World { rank, address, .. } = world;
        Error::Rendezvous(format!("rank {rank} and rank 0 at {address}: {what}"))
    };
    let left = || deadline.saturating_duration_since(Instant::now());
    let stream = loop {
        let addresses = world.address.to_socket_addrs();
        match addresses.and_then(|addresses| connect(addresses, deadline)) {
            Ok(stream) => break stream,
            Err(error) if left().is_zero() => {
                return Err(failed(format!("{error}, for {:?}", world.timeout)));
            }
            // Rank 0 may come later.
            Err(_) => sleep(PAUSE * 4),
        }
    };
    let mut link = Link::new(0, stream);
    let answer = { link.say(&format!("{}\t{hello}", world.rank)) }
        // Rank 0 says when its own bound has passed, which began later.
        .and_then(|()| link.read_line(deadline + world.timeout));
    let answer = answer.map_err(|error| failed(error.to_string()))?;
    let id = match answer.split_once('\t') {
        Some(("id", hex)) => from_hex(hex),
        Some(("no", why)) => return Err(Error::Rendezvous(why.to_owned())),
        _ => None,
    };
    let id = id.ok_or_else(|| failed(format!("it answers `{answer}`")))?;
    Ok((id, vec![link]))
}

fn from_hex(hex: &str) -> Option<[u8; 128]> {
    let mut id = [0; 128];
    for (at, byte) in id.iter_mut().enumerate() {
        *byte = u8::from_str_radix(hex.get(2 * at..2 * at + 2)?, 16).ok()?;
    }
    Some(id)
}

/// Returns true if there is nothing to read or accept yet.
pub(crate) fn is_early(kind: ErrorKind) -> bool {
    matches!(
        kind,
        ErrorKind::WouldBlock | ErrorKind::TimedOut | ErrorKind::Interrupted
    )
}

impl Link {
    pub(crate) fn new(rank: usize, stream: TcpStream) -> Link {
        Link {
            rank,
            stream,
            line: Mutex::default(),
        }
    }

    /// Sends a line.
    pub(crate) fn say(&self, line: &str) -> std::io::Result<()> {
        let _line = self.line.lock().unwrap_or_else(PoisonError::into_inner);
        (&self.stream).write_all(format!("{line}\n").as_bytes())
    }

    /// Reads a line, byte by byte so that nothing behind it is taken.
    fn read_line(&mut self, until: Instant) -> std::io::Result<String> {
        const LONGEST: usize = 4096;
        let mut line = Vec::new();
        while line.len() < LONGEST {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(ErrorKind::TimedOut.into());
            }
            self.stream.set_read_timeout(Some(left))?;
            let mut byte = [0];
            match self.stream.read(&mut byte) {
                Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
                Ok(_) if byte[0] == b'\n' => {
                    return Ok(String::from_utf8_lossy(&line).into_owned());
                }
                Ok(_) => line.push(byte[0]),
                Err(error) if is_early(error.kind()) => {}
                Err(error) => return Err(error),
            }
        }
        Err(ErrorKind::InvalidData.into())
    }
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead, BufReader};
    use std::thread;

    use super::*;

    /// The own name of a host that `/etc/hosts` gives 127.0.1.1.
    #[test]
    fn rank_0_can_be_reached_by_its_name() {
        let is_at = |address| listen(address).unwrap().local_addr().unwrap().ip();
        for address in ["localhost:0", "127.0.0.1:0"] {
            assert!(is_at(address).is_loopback(), "{address}");
        }
        // Only the system's resolver takes this for 127.0.0.1, as it does with names.
        for name in ["127.1:0", "0.0.0.0:0"] {
            assert!(is_at(name).is_unspecified(), "{name}");
        }
    }

    /// One that answers nothing, such as that of an interface that other hosts do not reach.
    #[cfg(target_os = "linux")]
    #[test]
    fn an_address_that_does_not_answer_leaves_time_for_the_next() {
        use std::os::fd::AsRawFd;

        unsafe extern "C" {
            fn listen(socket: i32, backlog: i32) -> i32;
        }
        let open = || TcpListener::bind("127.0.0.1:0").unwrap();
        let (full, free) = (open(), open());
        // SAFETY: the socket is open, and listens already.
        assert_eq!(unsafe { listen(full.as_raw_fd(), 0) }, 0);
        let full = full.local_addr().unwrap();
        let mut waiting = Vec::new();
        while let Ok(stream) = TcpStream::connect_timeout(&full, Duration::from_millis(200)) {
            waiting.push(stream);
        }
        let free = free.local_addr().unwrap();
        let begin = Instant::now();
        let stream = connect([full, free].into_iter(), begin + 30 * ATTEMPT).unwrap();
        assert_eq!(stream.peer_addr().unwrap(), free);
        assert!(begin.elapsed() < 15 * ATTEMPT);
    }

    /// Connections get even ports there, in turn.
    #[cfg(target_os = "linux")]
    #[test]
    fn a_rank_does_not_connect_to_itself() {
        let port = loop {
            let listener = TcpListener::bind("127.0.0.1:0").unwrap();
            let port = listener.local_addr().unwrap().port() & !1;
            if TcpListener::bind(("127.0.0.1", port)).is_ok() {
                break port;
            }
        };
        let address = SocketAddr::from(([127, 0, 0, 1], port));
        for attempt in 0..30_000 {
            // Another program may listen there by now.
            if let Ok(stream) = connect([address].into_iter(), Instant::now() + ATTEMPT) {
                let ends = (stream.local_addr().unwrap(), stream.peer_addr().unwrap());
                assert_ne!(ends.0, ends.1, "attempt {attempt}");
            }
        }
    }

    #[test]
    fn lines_of_several_threads_stay_whole() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (link, (far, _)) = (Link::new(0, stream), listener.accept().unwrap());
        // More than the buffers of a connection take.
        let lines = ["a", "b", "c"].map(|letter| letter.repeat(8 << 20));
        let mut found: Vec<_> = thread::scope(|scope| {
            for line in &lines {
                let link = &link;
                scope.spawn(move || link.say(line).unwrap());
            }
            let found = BufReader::new(far).lines().take(lines.len());
            found.map(|line| line.unwrap()).collect()
        });
        found.sort();
        assert!(found == lines, "lines are mixed");
    }
}
