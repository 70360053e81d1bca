//! Writes `benches/RESULTS.md` from the tables of `benches/results/`.

use std::path::Path;

fn main() -> std::io::Result<()> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR"));
    let text = graphene_benches::results::page(&folder.join("results"))?;
    std::fs::write(folder.join("RESULTS.md"), text)
}
