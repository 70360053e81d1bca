//! The cache: round trips, damage, folders that take nothing, eviction, threads and processes.

use super::entry::HEADER;
use super::{Cache, Contents, HASH, Key, MAGIC, chosen, decode, encode};
use crate::device::Cubin;
use graphene_ir::arch::Arch;
use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, SystemTime};

const ARCH: Arch = Arch::Sm90a;

/// A folder of its own for each test, removed at the end.
struct Folder(PathBuf);

impl Folder {
    fn new() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = format!("graphene-cache-{}-{number}", std::process::id());
        Self(std::env::temp_dir().join(name))
    }

    fn names(&self) -> Vec<String> {
        let entries = fs::read_dir(&self.0).expect("the folder is there");
        let mut names: Vec<_> = entries
            .map(|entry| entry.expect("it can be read").file_name().to_string_lossy().into_owned())
            .collect();
        names.sort();
        names
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        // What cannot be removed is left to the system.
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn cubin() -> Cubin {
    let image: Vec<u8> = (0..999_u32).map(|i| (i * i % 251) as u8).collect();
    Cubin::of(ARCH, image, "ptxas info : Used 40 registers\n")
}

fn key() -> Key {
    Key::with("source", ARCH, "12.9")
}

#[test]
fn a_probe_leaves_nothing_and_says_what_cannot_be_written() {
    let folder = Folder::new();
    let cache = Cache::new(&folder.0);
    cache.probe().expect("a folder that is not there yet is no error");
    assert!(!folder.0.exists());
    fs::create_dir_all(&folder.0).unwrap();
    cache.probe().unwrap();
    assert!(folder.names().is_empty());
    assert!(Cache::new("/proc/self").probe().is_err(), "nobody writes there");
}

#[test]
fn what_is_put_is_found() {
    let folder = Folder::new();
    let cache = Cache::new(&folder.0);
    assert!(cache.get(key(), ARCH).is_none());
    assert_eq!(cache.contents().expect("nothing is there"), Contents::default());
    cache.put(key(), &cubin());
    assert_eq!(cache.warning(), None);
    // As another process sees it.
    let found = Cache::new(&folder.0).get(key(), ARCH).expect("it was put");
    assert_eq!((found.image(), found.log()), (cubin().image(), cubin().log()));
    assert_eq!((found.arch(), found.log().registers), (ARCH, 40));
    assert_eq!(folder.names(), [key().name()]);
    let contents = cache.contents().expect("the folder is there");
    assert_eq!(contents.entries, 1);
    assert_eq!(contents.bytes, encode(key(), &cubin()).len() as u64);
}

#[test]
fn keys_differ_where_machine_code_may() {
    let keys = [
        key(),
        Key::with("sourcf", ARCH, "12.9"),
        Key::with("source", Arch::Sm80, "12.9"),
        Key::with("source", ARCH, "13.0"),
        Key::with("9source", ARCH, "12."),
        Key::with("", ARCH, "12.9source"),
    ];
    for (i, key) in keys.iter().enumerate() {
        assert!(!keys[..i].contains(key), "{i}");
    }
    assert_eq!(key(), Key::with("source", ARCH, "12.9"));
}

#[test]
fn entries_with_any_byte_changed_are_not_trusted() {
    let whole = encode(key(), &cubin());
    let image = HEADER..HEADER + cubin().image().len();
    // What each region is changed to does not matter: all positions of header, log and checksum, and of the image.
    for place in 0..whole.len() {
        for change in [1, 0x80, 0xff] {
            if image.contains(&place) && change != 0x80 {
                continue;
            }
            let mut bytes = whole.clone();
            bytes[place] ^= change;
            assert!(decode(&bytes, key()).is_none(), "byte {place} changed by {change}");
        }
    }
    for len in (0..whole.len()).rev().take(HASH + 64).chain(0..HEADER + HASH + 1) {
        assert!(decode(&whole[..len], key()).is_none(), "cut to {len}");
    }
    let mut longer = whole.clone();
    longer.push(0);
    assert!(decode(&longer, key()).is_none());
    assert!(decode(&whole, Key::with("other", ARCH, "12.9")).is_none());
    assert!(whole.starts_with(&MAGIC) && decode(&whole, key()).is_some());
}

/// Entries whose checksum is right, and whose lengths are not, are refused as well.
#[test]
fn lengths_that_lie_are_not_trusted() {
    use sha2::{Digest, Sha256};
    let whole = encode(key(), &cubin());
    let lengths = HEADER - 16..HEADER;
    for place in lengths {
        for change in [1, 0xff] {
            let mut body = whole[..whole.len() - HASH].to_vec();
            body[place] ^= change;
            let checksum = Sha256::digest(&body);
            body.extend(checksum);
            let found = decode(&body, key());
            assert!(found.is_none(), "byte {place} of the lengths changed by {change}");
        }
    }
}

#[test]
fn damaged_entries_are_replaced() {
    let folder = Folder::new();
    let cache = Cache::new(&folder.0);
    cache.put(key(), &cubin());
    let path = folder.0.join(key().name());
    let whole = fs::read(&path).expect("it was put");
    let damages: [&dyn Fn() -> Vec<u8>; 4] =
        [&|| Vec::new(), &|| whole[..whole.len() / 2].to_vec(), &|| vec![0; whole.len()], &|| {
            let mut bytes = whole.clone();
            bytes[HEADER + 7] ^= 4;
            bytes
        }];
    for damage in damages {
        fs::write(&path, damage()).expect("the folder takes it");
        assert!(cache.get(key(), ARCH).is_none());
        cache.put(key(), &cubin());
        assert_eq!(cache.get(key(), ARCH).expect("it was replaced").image(), cubin().image());
    }
    // What is no file at all cannot be replaced, and is no error.
    fs::remove_file(&path).expect("it is there");
    fs::create_dir(&path).expect("the folder takes it");
    assert!(cache.get(key(), ARCH).is_none());
    cache.put(key(), &cubin());
    assert!(cache.warning().is_some());
    assert_eq!(folder.names(), [key().name()]);
}

#[test]
fn temporary_files_that_are_old_are_swept() {
    let folder = Folder::new();
    fs::create_dir_all(&folder.0).expect("the temporary folder takes it");
    for name in [".a.cubin.1.tmp", "z.tmp", ".c"] {
        fs::write(folder.0.join(name), "x").expect("the folder takes it");
    }
    let cache = Cache::new(&folder.0);
    // Of what was written just now, another process may still be the writer.
    cache.put(key(), &cubin());
    assert_eq!(folder.names().len(), 4);
    cache.sweep(Duration::ZERO);
    assert_eq!(folder.names(), [".c".to_owned(), key().name(), "z.tmp".to_owned()]);
}

#[test]
#[cfg(target_os = "linux")]
fn a_full_disk_is_a_warning_once() {
    let folder = Folder::new();
    let cache = Cache::new(&folder.0);
    let full = |_: &Path, bytes: &[u8]| fs::write("/dev/full", bytes);
    cache.put_by(key(), &cubin(), full);
    let warning = cache.warning().expect("nothing can be written");
    assert!(warning.contains("No space left on device"), "{warning}");
    assert!(warning.contains(&folder.0.display().to_string()), "{warning}");
    assert!(warning.ends_with("; GRAPHENE_CACHE names another folder"), "{warning}");
    // Nothing more is tried.
    cache.put(key(), &cubin());
    assert!(folder.names().is_empty());
    assert_eq!(cache.warning(), Some(warning));
}

/// A disk that is full in the midst of an entry leaves nothing behind.
#[test]
fn parts_of_entries_are_removed_where_writing_fails() {
    let folder = Folder::new();
    let cache = Cache::new(&folder.0);
    let half = |path: &Path, bytes: &[u8]| {
        fs::write(path, &bytes[..bytes.len() / 2])?;
        Err(std::io::ErrorKind::StorageFull.into())
    };
    cache.put_by(key(), &cubin(), half);
    assert!(cache.warning().is_some() && folder.names().is_empty());
}

/// The folder that a test gives to the process that it starts, which runs the same test.
const CHILD: &str = "GRAPHENE_TEST_CACHE_OF";

/// This test in a process of its own, with the folder.
fn child(test: &str, folder: &Folder) -> std::process::Child {
    let mut command = std::process::Command::new(std::env::current_exe().expect("it is there"));
    let test = format!("gpu::cache::tests::{test}");
    command.args(["--exact", &test]).env(CHILD, &folder.0);
    let null = std::process::Stdio::null;
    command.stdout(null()).stderr(null()).spawn().expect("it was started before")
}

#[test]
fn processes_that_are_killed_leave_no_entry() {
    if let Some(folder) = std::env::var_os(CHILD) {
        let killed = |path: &Path, bytes: &[u8]| {
            fs::write(path, &bytes[..bytes.len() / 2])?;
            std::process::abort();
        };
        Cache::new(folder).put_by(key(), &cubin(), killed);
        return;
    }
    let folder = Folder::new();
    let mut child = child("processes_that_are_killed_leave_no_entry", &folder);
    assert!(!child.wait().expect("it was started").success());
    let [left] = &folder.names()[..] else { panic!("{:?}", folder.names()) };
    assert!(left.starts_with('.') && left.ends_with(".tmp"), "{left}");
    let cache = Cache::new(&folder.0);
    assert_eq!(cache.contents().expect("the folder is there").entries, 0);
    assert!(cache.get(key(), ARCH).is_none());
    // A later one removes it, when whoever wrote it must be gone.
    let path = folder.0.join(left);
    let old = SystemTime::now() - 2 * super::STALE;
    let file = fs::File::options().write(true).open(path).expect("it is ours");
    file.set_modified(old).expect("it is ours");
    cache.put(key(), &cubin());
    assert_eq!(folder.names(), [key().name()]);
}

#[test]
fn processes_share_a_folder() {
    let other = |i: u32| Key::with(&i.to_string(), ARCH, "12.9");
    let work = |folder: &Path| {
        // Each evicts what the others have put.
        let cache = Cache::new(folder).within(5 * encode(key(), &cubin()).len() as u64);
        for i in 0..200 {
            cache.put(other(i % 7 + std::process::id() % 5), &cubin());
            let found = cache.get(other(i % 11), ARCH);
            assert!(found.is_none_or(|found| found.image() == cubin().image()));
        }
        assert_eq!(cache.warning(), None);
    };
    if let Some(folder) = std::env::var_os(CHILD) {
        return work(Path::new(&folder));
    }
    let folder = Folder::new();
    let children: Vec<_> = (0..3).map(|_| child("processes_share_a_folder", &folder)).collect();
    work(&folder.0);
    for mut child in children {
        assert!(child.wait().expect("it was started").success());
    }
    // Whatever is left is whole.
    let cache = Cache::new(&folder.0);
    let whole = (0..12).filter(|&i| cache.get(other(i), ARCH).is_some()).count();
    assert_eq!(folder.names().len(), whole);
}

#[test]
fn what_was_not_used_for_longest_is_evicted() {
    let folder = Folder::new();
    let size = encode(key(), &cubin()).len() as u64;
    let keys: Vec<Key> = (0..8).map(|i| Key::with(&i.to_string(), ARCH, "12.9")).collect();
    // From the oldest to the newest, ten seconds apart.
    for (key, age) in keys.iter().zip([70, 60, 50, 40, 30, 20, 10, 0]) {
        Cache::new(&folder.0).put(*key, &cubin());
        let file = fs::File::options().write(true).open(folder.0.join(key.name()));
        let time = SystemTime::now() - Duration::from_secs(age);
        file.and_then(|file| file.set_modified(time)).expect("it is ours");
    }
    // This run asks for the oldest; an earlier one for the next.
    assert!(Cache::new(&folder.0).get(keys[1], ARCH).is_some());
    let cache = Cache::new(&folder.0).within(5 * size);
    assert!(cache.get(keys[0], ARCH).is_some());
    cache.put(key(), &cubin());
    // An eighth of the limit is free again.
    let left: Vec<usize> = (0..8).filter(|&i| folder.0.join(keys[i].name()).is_file()).collect();
    assert_eq!(left, [0, 1, 7]);
    assert_eq!(cache.contents().expect("it is there"), Contents { entries: 4, bytes: 4 * size });
    // What this run has put and found stays, and is all that stays where the limit is zero.
    let cache = Cache::new(&folder.0).within(0);
    keys[2..4].iter().for_each(|key| cache.put(*key, &cubin()));
    assert_eq!(cache.contents().expect("it is there").entries, 2);
    assert!(cache.get(keys[2], ARCH).is_some() && cache.get(keys[3], ARCH).is_some());
    assert_eq!(cache.warning(), None);
}

#[test]
#[cfg(unix)]
fn folders_that_take_nothing_are_a_warning() {
    use std::os::unix::fs::PermissionsExt;
    // Below a file there are no folders, whoever asks.
    let folder = Folder::new();
    fs::write(&folder.0, "a file").expect("the temporary folder takes it");
    let cache = Cache::new(folder.0.join("below"));
    cache.put(key(), &cubin());
    assert!(cache.warning().is_some() && cache.get(key(), ARCH).is_none());
    fs::remove_file(&folder.0).expect("it is there");

    let folder = Folder::new();
    fs::create_dir_all(&folder.0).expect("the temporary folder takes it");
    let set = |mode| fs::set_permissions(&folder.0, fs::Permissions::from_mode(mode));
    set(0o555).expect("it is ours");
    // Root writes nevertheless.
    let writes = fs::write(folder.0.join("probe"), "").is_ok();
    let cache = Cache::new(&folder.0);
    cache.put(key(), &cubin());
    assert_eq!(cache.get(key(), ARCH).is_some(), writes);
    assert_eq!(cache.warning().is_none(), writes);
    set(0o755).expect("it is ours");
}

#[test]
fn threads_share_a_folder() {
    let folder = Folder::new();
    let put_and_get = |cache: &Cache| {
        for _ in 0..50 {
            cache.put(key(), &cubin());
            // Whoever wrote last, the entry is whole.
            let found = cache.get(key(), ARCH).expect("it was put");
            assert_eq!(found.image(), cubin().image());
        }
    };
    let (a, b) = (Cache::new(&folder.0), Cache::new(&folder.0));
    std::thread::scope(|scope| {
        scope.spawn(|| put_and_get(&a));
        scope.spawn(|| put_and_get(&a));
        scope.spawn(|| put_and_get(&b));
    });
    assert_eq!((a.warning(), b.warning()), (None, None));
    assert_eq!(folder.names(), [key().name()]);
}

#[test]
fn the_environment_chooses_the_folder() {
    let choose = |set: &[(&str, &str)]| {
        let find =
            |name: &str| set.iter().find(|row| row.0 == name).map(|row| OsString::from(row.1));
        chosen(find)
    };
    let (home, xdg, own) = (("HOME", "/h"), ("XDG_CACHE_HOME", "/x"), ("GRAPHENE_CACHE", "/g/c"));
    assert_eq!(choose(&[]), None);
    assert_eq!(choose(&[home]), Some("/h/.cache/graphene".into()));
    assert_eq!(choose(&[home, xdg]), Some("/x/graphene".into()));
    assert_eq!(choose(&[home, xdg, own]), Some("/g/c".into()));
}
