//! Boundary of `dpmesh_core::stream`: keys and streams, opaque to Python.

#![expect(
    clippy::doc_markdown,
    reason = "docstrings of Python name exceptions in the manner of numpydoc"
)]

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use dpmesh_core::stream::{self, Cipher};
use numpy::PyUntypedArray;
use pyo3::exceptions::{PyOSError, PyTypeError};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyInt, PyTuple};
use zeroize::Zeroizing;

use crate::arguments::integer;
use crate::convert::{read, run_native, unfit, write};

fn cipher(name: &str) -> PyResult<Cipher> {
    match name {
        "aes" => Ok(Cipher::Aes),
        "chacha20" => Ok(Cipher::ChaCha20),
        other => Err(unfit("cipher", "'aes' or 'chacha20'", format!("'{other}'"))),
    }
}

fn never_stored(secret: &Bound<'_, PyAny>) -> PyResult<()> {
    let name = secret.get_type().name()?;
    let message = format!("a {name} cannot be pickled or copied: keys are never stored");
    Err(PyTypeError::new_err(message))
}

/// Secret of 256 bits from which all random numbers of a run follow.
///
/// `Key.generate` draws a key from the operating system, `Key.seeded` computes one from a seed, and
/// `Key.load` reads a saved one. `key.stream(purpose, round)` opens a stream of random numbers. A key
/// cannot be pickled or copied, and Python cannot read its bits.
#[pyclass(frozen, module = "dpmesh._core")]
pub(crate) struct Key {
    secret: stream::Key,
    is_seeded: bool,
    nodes: Option<Arc<[u32]>>,
}

impl Key {
    fn of_all_nodes(secret: stream::Key, is_seeded: bool) -> Key {
        Key {
            secret,
            is_seeded,
            nodes: None,
        }
    }
}

#[pymethods]
impl Key {
    /// Raise a TypeError that names `Key.generate`, `Key.seeded` and `Key.load`.
    #[new]
    #[pyo3(signature = (*_args, **_kwargs))]
    fn new(_args: &Bound<'_, PyTuple>, _kwargs: Option<&Bound<'_, PyDict>>) -> PyResult<Key> {
        let ways = "Key.generate(), Key.seeded(seed) or Key.load(path)";
        Err(PyTypeError::new_err(format!("a Key is made by {ways}")))
    }

    /// Return a fresh key from the operating system's random number generator.
    ///
    /// A private release needs such a key.
    ///
    /// Parameters
    /// ----------
    /// cipher
    ///     Cipher whose key stream gives the random numbers: "aes" (AES-256 in counter mode) or
    ///     "chacha20".
    ///
    /// Raises
    /// ------
    /// ValueError
    ///     If the cipher is unknown.
    /// OSError
    ///     If the operating system has no random numbers.
    #[staticmethod]
    #[pyo3(signature = (cipher = "aes"))]
    fn generate(cipher: &str) -> PyResult<Key> {
        let key = stream::Key::generate(self::cipher(cipher)?);
        let secret = key.map_err(|error| PyOSError::new_err(error.to_string()))?;
        Ok(Key::of_all_nodes(secret, false))
    }

    /// Return the key that follows from a seed, for runs that can be repeated. NOT private.
    ///
    /// Whoever knows or guesses the seed can subtract the noise.
    ///
    /// Parameters
    /// ----------
    /// seed
    ///     Integer of at least 0 and below 2**256.
    /// cipher
    ///     "aes" or "chacha20", as in `Key.generate`.
    ///
    /// Raises
    /// ------
    /// ValueError
    ///     If the seed is out of its range, or the cipher is unknown.
    #[staticmethod]
    #[pyo3(signature = (seed, cipher = "aes"))]
    fn seeded(seed: &Bound<'_, PyAny>, cipher: &str) -> PyResult<Key> {
        let secret = stream::Key::new(self::cipher(cipher)?, &*seed_bytes(seed)?);
        Ok(Key::of_all_nodes(secret, true))
    }

    /// Return the key that `save` wrote into a file.
    ///
    /// Raises
    /// ------
    /// ValueError
    ///     If `save` did not write the file.
    /// OSError
    ///     If the file cannot be read.
    #[staticmethod]
    fn load(path: PathBuf) -> PyResult<Key> {
        let secret = stream::Key::load(&path).map_err(|error| unusable(&path, error))?;
        Ok(Key::of_all_nodes(secret, false))
    }

    /// Write the key into a new file that only its owner can read, to resume a run with it.
    ///
    /// Protect the file like the data, and delete it after the run: whoever has the key can subtract
    /// the noise.
    ///
    /// Raises
    /// ------
    /// ValueError
    ///     If the key is seeded: keep its seed instead.
    /// OSError
    ///     If the file exists or cannot be written.
    fn save(&self, path: PathBuf) -> PyResult<()> {
        if self.is_seeded {
            let wanted = "a key from the operating system to save";
            return Err(unfit("key", wanted, "a seeded one: keep its seed"));
        }
        self.secret
            .save(&path)
            .map_err(|error| unusable(&path, error))
    }

    /// Cipher whose key stream gives the random numbers: "aes" or "chacha20".
    #[getter]
    fn cipher(&self) -> &'static str {
        self.secret.cipher().name()
    }

    /// True if the key follows from a seed. Releases with its noise are NOT private.
    #[getter]
    fn is_seeded(&self) -> bool {
        self.is_seeded
    }

    /// Return another key, computed from this key and from `data`.
    ///
    /// Without this key, the keys for different bytes `data` look like independent keys, under standard
    /// cryptographic assumptions. A key derived from a seeded key is seeded.
    fn derive(&self, data: &[u8]) -> Key {
        Key {
            secret: self.secret.derive(data),
            is_seeded: self.is_seeded,
            nodes: self.nodes.clone(),
        }
    }

    /// Return the stream of random numbers for a purpose in a round.
    ///
    /// Streams that differ in key, purpose or round are independent. Equal arguments give an equal
    /// stream, and so the same numbers again.
    ///
    /// Parameters
    /// ----------
    /// purpose
    ///     A `dpmesh.keys.Purpose`, or a custom integer from 100 to 2**32 - 1.
    /// round
    ///     Round, from 0 to 2**32 - 1.
    ///
    /// Raises
    /// ------
    /// ValueError
    ///     If a number is out of its range.
    #[pyo3(signature = (purpose, round = 0))]
    fn stream(
        &self,
        #[pyo3(from_py_with = purpose_number)] purpose: u32,
        #[pyo3(from_py_with = round_number)] round: u32,
    ) -> PyResult<Stream> {
        let stream = self.secret.stream(purpose, round);
        let stream =
            stream.map_err(|error| unfit(error.argument(), error.wanted(), error.got()))?;
        Ok(Stream {
            kernel: match &self.nodes {
                Some(nodes) => stream.for_nodes(Arc::clone(nodes)),
                None => stream,
            },
            cipher: self.secret.cipher(),
            is_seeded: self.is_seeded,
        })
    }

    /// Return the same key for a process that holds only some of the nodes.
    ///
    /// Row r of a draw from its streams then is the row of node `nodes[r]`, as if one process drew for
    /// all nodes.
    ///
    /// Parameters
    /// ----------
    /// nodes
    ///     Distinct indices of nodes, an array of uint32. If the key already holds some nodes only,
    ///     they index into these.
    fn for_nodes(&self, nodes: &Bound<'_, PyUntypedArray>) -> PyResult<Key> {
        Ok(Key {
            secret: self.secret.clone(),
            is_seeded: self.is_seeded,
            nodes: Some(some_of(self.nodes.as_deref(), nodes)?),
        })
    }

    fn __repr__(&self) -> String {
        described("Key", self.cipher(), self.is_seeded)
    }

    fn __reduce__(slf: &Bound<'_, Self>) -> PyResult<()> {
        never_stored(slf.as_any())
    }
}

/// Random numbers of all nodes for one purpose in one round; `Key.stream` opens it.
///
/// Each node has an independent sequence of random 32-bit words, which does not depend on the order of
/// calls, on threads or on processes. A draw always begins at the first word: two draws from equal
/// streams are equal.
#[derive(Debug)]
#[pyclass(frozen, module = "dpmesh._core")]
pub struct Stream {
    pub kernel: stream::Stream,
    cipher: Cipher,
    is_seeded: bool,
}

#[pymethods]
impl Stream {
    /// Cipher whose key stream gives the random numbers: "aes" or "chacha20".
    #[getter]
    fn cipher(&self) -> &'static str {
        self.cipher.name()
    }

    /// True if the key of the stream follows from a seed. Releases with its noise are NOT private.
    #[getter]
    fn is_seeded(&self) -> bool {
        self.is_seeded
    }

    /// Purpose of the stream, from 1 to 2**32 - 1: see `dpmesh.keys.Purpose`.
    #[getter]
    fn purpose(&self) -> u32 {
        self.kernel.purpose()
    }

    /// Round of the stream, from 0 to 2**32 - 1.
    #[getter]
    fn round(&self) -> u32 {
        self.kernel.round()
    }

    /// Fill an array with the first random words of a node.
    ///
    /// Parameters
    /// ----------
    /// node
    ///     Index of the node, from 0 to 2**32 - 1.
    /// out
    ///     Array of uint32 that is overwritten, C-contiguous.
    fn words<'py>(
        &self,
        py: Python<'py>,
        #[pyo3(from_py_with = node_number)] node: u32,
        out: &Bound<'py, PyUntypedArray>,
    ) -> PyResult<()> {
        let mut out = write::<u32>("out", out)?;
        let out = out.as_slice_mut()?;
        run_native(py, || self.kernel.words_into(node, 0, out))
    }

    /// Return the same stream for some of its nodes: row r of a draw is the row of node `nodes[r]`.
    ///
    /// Parameters
    /// ----------
    /// nodes
    ///     Distinct indices of nodes, an array of uint32.
    fn for_nodes(&self, nodes: &Bound<'_, PyUntypedArray>) -> PyResult<Stream> {
        let nodes = some_of(self.kernel.nodes(), nodes)?;
        Ok(Stream {
            kernel: self.kernel.clone().for_nodes(nodes),
            cipher: self.cipher,
            is_seeded: self.is_seeded,
        })
    }

    fn __repr__(&self) -> String {
        described("Stream", self.cipher(), self.is_seeded)
    }

    fn __reduce__(slf: &Bound<'_, Self>) -> PyResult<()> {
        never_stored(slf.as_any())
    }
}

fn unusable(path: &Path, error: io::Error) -> PyErr {
    match error.kind() {
        io::ErrorKind::InvalidData => unfit("path", "a file that Key.save wrote", path.display()),
        kind => io::Error::new(kind, format!("{}: {error}", path.display())).into(),
    }
}

fn described(what: &str, cipher: &str, is_seeded: bool) -> String {
    let is_seeded = if is_seeded { "True" } else { "False" };
    format!("{what}(cipher='{cipher}', is_seeded={is_seeded})")
}

fn purpose_number(value: &Bound<'_, PyAny>) -> PyResult<u32> {
    integer("purpose", value, 1)
}

fn round_number(value: &Bound<'_, PyAny>) -> PyResult<u32> {
    integer("round", value, 0)
}

fn node_number(value: &Bound<'_, PyAny>) -> PyResult<u32> {
    integer("node", value, 0)
}

/// The 32 bytes of the seed, lowest first.
fn seed_bytes(seed: &Bound<'_, PyAny>) -> PyResult<Zeroizing<[u8; 32]>> {
    let bytes = match seed.cast::<PyInt>() {
        Ok(seed) => seed.call_method1("to_bytes", (32, "little")).ok(),
        Err(_) => None,
    };
    match bytes {
        Some(bytes) => Ok(Zeroizing::new(bytes.extract()?)),
        None => Err(unfit(
            "seed",
            "an integer of at least 0 and below 2**256",
            seed.repr()?,
        )),
    }
}

/// The nodes at these places among the `held` ones; `None` holds all.
fn some_of(held: Option<&[u32]>, nodes: &Bound<'_, PyUntypedArray>) -> PyResult<Arc<[u32]>> {
    let nodes = read::<u32>("nodes", nodes)?;
    let Some(held) = held else {
        return Ok(nodes.as_slice()?.into());
    };
    let of = |node: &u32| held.get(*node as usize).copied().ok_or(*node);
    let chosen: Result<_, u32> = nodes.as_slice()?.iter().map(of).collect();
    let wanted = format!("nodes below {}, as many as the key is for", held.len());
    chosen.map_err(|node| unfit("nodes", &wanted, node))
}
