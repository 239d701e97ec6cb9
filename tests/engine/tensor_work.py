"""Work of one member of a tensor group, importable by fresh processes."""

import torch.nn.functional as F

from holdfast.engine.tensor_parallel import copy_to, vocab_cross_entropy, vocab_embedding
from holdfast.plan.units import share


def vocabulary_work(group, tokens, targets, table, head):
    """Lookup and loss with this member's rows: the hidden state, the loss, and both gradients."""
    low, high = share(len(table), group.rank, group.size)
    local_table = table[low:high].clone().requires_grad_()
    local_head = head[low:high].clone().requires_grad_()
    x = vocab_embedding(tokens, local_table, low, group)
    logits = F.linear(copy_to(x, group), local_head)
    loss = vocab_cross_entropy(logits, targets, low, group)
    (loss * 3).backward()
    return x.detach(), loss.detach(), local_table.grad, local_head.grad
