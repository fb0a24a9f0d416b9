"""Train a Marian model with Hugging Face's Seq2SeqTrainer, or translate with it.

python huggingface.py train MINUTES
python huggingface.py translate SOURCES OUTPUT

Follows the translation guide of the documentation, with a model from scratch of the size of mtformer's.
"""

import sys
import time

import sacrebleu
import torch
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from transformers import (
    DataCollatorForSeq2Seq,
    MarianConfig,
    MarianMTModel,
    PreTrainedTokenizerFast,
    Seq2SeqTrainer,
    Seq2SeqTrainingArguments,
    TrainerCallback,
)

START = time.time()
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


class StopInTime(TrainerCallback):
    def on_step_end(self, args, state, control, **kwargs):
        if time.time() - START > 60 * float(sys.argv[2]) - 60:
            control.should_evaluate = control.should_save = control.should_training_stop = True


def train():
    tokenizer = train_tokenizer()
    config = MarianConfig(
        vocab_size=len(tokenizer), d_model=128, encoder_layers=4, decoder_layers=4, encoder_attention_heads=4,
        decoder_attention_heads=4, encoder_ffn_dim=512, decoder_ffn_dim=512, dropout=0.25, attention_dropout=0.0,
        scale_embedding=True, max_position_embeddings=512, pad_token_id=0, bos_token_id=2, eos_token_id=3,
        decoder_start_token_id=0, forced_eos_token_id=None, activation_function="relu",
    )  # fmt: skip
    model = MarianMTModel(config)

    def encode(name):
        sides = read(f"{name}.en"), read(f"{name}.de")
        batch = tokenizer(sides[0], text_target=sides[1], max_length=128, truncation=True)
        return [{"input_ids": src, "labels": tgt} for src, tgt in zip(batch["input_ids"], batch["labels"], strict=True)]

    def metrics(prediction):
        sides = prediction.predictions, prediction.label_ids  # not in the order of the file
        texts, references = (tokenizer.batch_decode(ids.clip(min=0), skip_special_tokens=True) for ids in sides)
        return {"bleu": sacrebleu.corpus_bleu(texts, [references]).score}

    arguments = Seq2SeqTrainingArguments(
        "model", use_cpu=not torch.cuda.is_available(), bf16=has_bf16(), num_train_epochs=1000,
        per_device_train_batch_size=192, per_device_eval_batch_size=128, train_sampling_strategy="group_by_length",
        learning_rate=2e-3, lr_scheduler_type="inverse_sqrt", warmup_steps=500, label_smoothing_factor=0.1,
        adam_beta2=0.98, eval_strategy="steps", eval_steps=250, save_steps=250, save_total_limit=2,
        load_best_model_at_end=True, metric_for_best_model="bleu", predict_with_generate=True,
        generation_num_beams=1, generation_max_length=100, logging_steps=100, report_to="none", disable_tqdm=True,
    )  # fmt: skip
    trainer = Seq2SeqTrainer(
        model, arguments, DataCollatorForSeq2Seq(tokenizer, model), encode("train"), encode("dev"),
        processing_class=tokenizer, compute_metrics=metrics, callbacks=[StopInTime()],
    )  # fmt: skip
    trainer.train()
    trainer.save_model("final")


def has_bf16():
    return torch.cuda.is_available() or torch.cpu._is_avx512_bf16_supported()


@torch.inference_mode()
def translate(source, output):
    tokenizer = PreTrainedTokenizerFast.from_pretrained("final")
    model, lines = MarianMTModel.from_pretrained("final").eval(), read(source)
    order = sorted(range(len(lines)), key=lambda number: len(lines[number]))
    texts = {}
    for start in range(0, len(order), 64):
        numbers = order[start : start + 64]
        batch = tokenizer([lines[number] for number in numbers], padding=True, return_tensors="pt")
        batch.pop("token_type_ids", None)
        ids = model.generate(**batch, num_beams=5, max_length=100)
        texts |= zip(numbers, tokenizer.batch_decode(ids, skip_special_tokens=True), strict=True)
    with open(output, "w", encoding="utf-8") as file:
        file.writelines(f"{texts[number]}\n" for number in range(len(lines)))


if __name__ == "__main__":
    train() if sys.argv[1] == "train" else translate(*sys.argv[2:])
