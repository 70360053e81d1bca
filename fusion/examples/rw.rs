use graphene_frontend::import::{ImportOptions, import, read_model};
use graphene_fusion::rewrite;
fn main() {
    let quiet = std::env::var("QUIET").is_ok();
    for path in std::env::args().skip(1) {
        let (model, weights) = read_model(&path).unwrap();
        let graph = match import(model, &weights, &ImportOptions::default()) {
            Ok(g) => g.graph,
            Err(e) => {
                println!("{path}: {e}");
                continue;
            }
        };
        let t = std::time::Instant::now();
        let r = rewrite(&graph, &"cpu:2".parse().unwrap()).unwrap();
        println!(
            "== {path} {} -> {} in {:?}\n{}",
            graph.len(),
            r.graph.len(),
            t.elapsed(),
            r.report
        );
        if !quiet {
            for l in graphene_frontend::text::print(&r.graph).text.lines() {
                if !l.contains("Constant(@") {
                    println!("{l}");
                }
            }
        }
    }
}
