//! A tokenizer for models of the zoo, which come without one: words are cut into letters.
//!
//! Its ids are small, so that every vocabulary has them. Weights of the zoo are numbers from a seed: what matters is that
//! text goes all the way, not what it means.

use tokenizers::Tokenizer;

/// Special tokens by id.
const SPECIAL: [&str; 5] = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"];

/// WordPiece over the printable characters of ASCII, at the beginning of a word and within it.
pub(crate) fn tokenizer() -> tokenizers::Result<Tokenizer> {
    let letters = || (b'!'..=b'~').filter(|byte| !byte.is_ascii_uppercase()).map(char::from);
    let words = SPECIAL.iter().map(|&word| word.to_owned());
    let words = words.chain(letters().map(String::from)).chain(letters().map(|c| format!("##{c}")));
    let vocabulary: serde_json::Map<String, serde_json::Value> =
        words.enumerate().map(|(id, word)| (word, id.into())).collect();
    let added: Vec<_> = SPECIAL
        .iter()
        .enumerate()
        .map(|(id, word)| {
            serde_json::json!({
                "id": id, "content": word, "single_word": false, "lstrip": false, "rstrip": false,
                "normalized": false, "special": true
            })
        })
        .collect();
    let special = |id: usize, type_id: usize| serde_json::json!({"SpecialToken": {"id": SPECIAL[id], "type_id": type_id}});
    let text =
        |id: &str, type_id: usize| serde_json::json!({"Sequence": {"id": id, "type_id": type_id}});
    let json = serde_json::json!({
        "version": "1.0",
        "truncation": null,
        "padding": null,
        "added_tokens": added,
        "normalizer": {
            "type": "BertNormalizer", "clean_text": true, "handle_chinese_chars": true,
            "strip_accents": null, "lowercase": true
        },
        "pre_tokenizer": {"type": "BertPreTokenizer"},
        "post_processor": {
            "type": "TemplateProcessing",
            "single": [special(2, 0), text("A", 0), special(3, 0)],
            "pair": [special(2, 0), text("A", 0), special(3, 0), text("B", 1), special(3, 1)],
            "special_tokens": {
                "[CLS]": {"id": "[CLS]", "ids": [2], "tokens": ["[CLS]"]},
                "[SEP]": {"id": "[SEP]", "ids": [3], "tokens": ["[SEP]"]}
            }
        },
        "decoder": {"type": "WordPiece", "prefix": "##", "cleanup": true},
        "model": {
            "type": "WordPiece", "unk_token": "[UNK]", "continuing_subword_prefix": "##",
            "max_input_chars_per_word": 100, "vocab": vocabulary
        }
    });
    Tokenizer::from_bytes(json.to_string())
}
