"""Train the joint SentencePiece model, and write its pieces in JoeyNMT's format."""

import sentencepiece

sentencepiece.SentencePieceTrainer.train(
    input="train.en,train.de", model_prefix="joint", vocab_size=8000, unk_id=0, pad_id=1, bos_id=2, eos_id=3
)
model = sentencepiece.SentencePieceProcessor(model_file="joint.model")
with open("joint.vocab", "w", encoding="utf-8") as file:
    file.writelines(f"{model.id_to_piece(number)}\n" for number in range(4, len(model)))
