"""Train a Marian model with Hugging Face's Seq2SeqTrainer, or translate with it.

python huggingface.py train LEARNING_RATE DROPOUT BATCH_PAIRS SEED
python huggingface.py translate CHECKPOINT SOURCES OUTPUT BEAM_SIZE

Follows the translation guide of the documentation, with a model from scratch of the size of mtformer's. Checkpoints are
translated after training, because slow decoding does not count.
"""

import sys

import torch
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from transformers import (
    DataCollatorForSeq2Seq,
    MarianConfig,
    MarianMTModel,
    PreTrainedTokenizerFast,
    Seq2SeqTrainer,
    Seq2SeqTrainingArguments,
)

SPECIAL = {"pad_token": "<pad>", "unk_token": "<unk>", "bos_token": "<s>", "eos_token": "</s>"}


def read(path):
    with open(path, encoding="utf-8") as file:
        return [line.rstrip("\n") for line in file]


def train_tokenizer():
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.normalizer = normalizers.NFKC()
    tokenizer.pre_tokenizer, tokenizer.decoder = pre_tokenizers.Metaspace(), decoders.Metaspace()
    trainer = trainers.UnigramTrainer(vocab_size=8000, special_tokens=list(SPECIAL.values()), unk_token="<unk>")
    tokenizer.train(["train.en", "train.de"], trainer)
    tokenizer.post_processor = processors.TemplateProcessing(single="$A </s>", special_tokens=[("</s>", 3)])
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, **SPECIAL)


def train(learning_rate, dropout, batch_pairs, seed):
    tokenizer = train_tokenizer()
    config = MarianConfig(
        vocab_size=len(tokenizer), d_model=128, encoder_layers=4, decoder_layers=4, encoder_attention_heads=4,
        decoder_attention_heads=4, encoder_ffn_dim=512, decoder_ffn_dim=512, dropout=float(dropout),
        attention_dropout=0.0, scale_embedding=True, max_position_embeddings=512, pad_token_id=0, bos_token_id=2,
        eos_token_id=3, decoder_start_token_id=0, forced_eos_token_id=None, activation_function="relu",
    )  # fmt: skip
    model = MarianMTModel(config)
    batch = tokenizer(read("train.en"), text_target=read("train.de"), max_length=128, truncation=True)
    pairs = zip(batch["input_ids"], batch["labels"], strict=True)
    dataset = [{"input_ids": src, "labels": tgt} for src, tgt in pairs]
    arguments = Seq2SeqTrainingArguments(
        "model", use_cpu=not torch.cuda.is_available(), bf16=has_bf16(), num_train_epochs=1000, seed=int(seed),
        per_device_train_batch_size=int(batch_pairs), train_sampling_strategy="group_by_length",
        learning_rate=float(learning_rate), lr_scheduler_type="inverse_sqrt", warmup_steps=500,
        label_smoothing_factor=0.1, adam_beta2=0.98, save_steps=75, logging_steps=50, report_to="none",
        disable_tqdm=True,
    )  # fmt: skip
    collator = DataCollatorForSeq2Seq(tokenizer, model)
    trainer = Seq2SeqTrainer(model, arguments, collator, dataset, processing_class=tokenizer)
    trainer.train()


def has_bf16():
    return torch.cuda.is_available() or torch.cpu._is_avx512_bf16_supported()


@torch.inference_mode()
def translate(checkpoint, source, output, beam_size):
    tokenizer = PreTrainedTokenizerFast.from_pretrained(checkpoint)
    model, lines = MarianMTModel.from_pretrained(checkpoint).eval(), read(source)
    order = sorted(range(len(lines)), key=lambda number: len(lines[number]))
    texts = {}
    for start in range(0, len(order), 64):
        numbers = order[start : start + 64]
        batch = tokenizer([lines[number] for number in numbers], padding=True, return_tensors="pt")
        batch.pop("token_type_ids", None)
        ids = model.generate(**batch, num_beams=int(beam_size), max_length=100)
        texts |= zip(numbers, tokenizer.batch_decode(ids, skip_special_tokens=True), strict=True)
    with open(output, "w", encoding="utf-8") as file:
        file.writelines(f"{texts[number]}\n" for number in range(len(lines)))


if __name__ == "__main__":
    {"train": train, "translate": translate}[sys.argv[1]](*sys.argv[2:])
