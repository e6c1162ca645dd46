"""Steps of one line. Each is the source of an expression, so that a program can be printed as a script.

x, y and z are registers, k is a number, w the list of weights. Results of `COMPUTE` and `VIEWS` go to z.
"""

COMPUTE = {
    # elementwise
    "relu": "x.relu()", "tanh": "flt(x).tanh()", "sigmoid": "flt(x).sigmoid()", "exp": "(flt(x) * 0.1).exp()", "neg": "-x",
    "gelu": "F.gelu(flt(x))", "clone": "x.clone()", "abs": "x.abs()", "where": "torch.where(x > 0, x, k)", "square": "flt(x).tanh().square()",
    "nan_to_num": "flt(x).nan_to_num()", "clamp": "x.clamp(-1, k)", "sign": "flt(x).sign()", "leaky": "F.leaky_relu(flt(x), 0.1)",
    "add": "x + fit(y, x)", "mul": "x * fit(y, x)", "sub": "x - 0.5 * fit(flt(y), x)", "max": "torch.maximum(x, fit(y, x))",
    "div": "flt(x) / (fit(flt(y), x).abs() + 1)", "lerp": "torch.lerp(f32(x), fit(f32(y), x), 0.3)", "atan2": "torch.atan2(f32(x), fit(f32(y), x))",
    "addcmul": "torch.addcmul(f32(x), fit(f32(y), x), fit(f32(y), x), value=0.5)", "scalar": "x + k", "gt": "x > fit(y, x)",
    "foreach": "torch._foreach_add([flt(x), flt(y)], 1.0)[k % 2]", "broadcast": "f32(x) + vec(f32(y), x.shape[-1])[-1:]",
    # dtypes
    "double": "flt(x).double()", "float": "flt(x).float()", "bfloat16": "flt(x).bfloat16()", "half": "flt(x).tanh().half()", "bool": "x > 0",
    "int": "(f32(x).nan_to_num().clamp(-9, 9) * 9).int()", "long": "(f32(x).nan_to_num().clamp(-9, 9) * 9).long()",
    "byte": "(f32(x).nan_to_num().clamp(0, 9) * 9).byte()", "complex": "torch.complex(f32(x), f32(x).neg())",
    # random
    "dropout": "F.dropout(flt(x), 0.3)", "noise": "flt(x) + torch.randn_like(flt(x)) * 0.1", "bernoulli": "torch.bernoulli(flt(x).sigmoid().nan_to_num(0.5))",
    "rrelu": "F.rrelu(flt(x), training=True)", "uniform": "torch.empty_like(flt(x)).uniform_(-1, 1) * flt(x)", "randperm": "x.reshape(-1)[torch.randperm(x.numel())]",
    "randint": "torch.randint(0, 9, x.shape)", "randn": "torch.randn(16, 4 + k)", "normal": "torch.normal(f32(x).nan_to_num(), 1.0)", "alpha": "F.alpha_dropout(f32(x), 0.3)",
    "multinomial": "torch.multinomial(vec(f32(x)).sigmoid().nan_to_num(0.5), 5, replacement=True)", "generator": "torch.rand(x.shape, generator=torch.Generator().manual_seed(k))",
    # shapes
    "contiguous": "x.t().contiguous()", "reshape": "mat(x).t().reshape(-1, mat(x).shape[0])", "pad": "F.pad(x, (1, k % 4))", "cat": "torch.cat([vec(flt(x), 2000), vec(flt(y), 2000)])",
    "stack": "torch.stack([f32(x), fit(f32(y), x)])", "flip": "x.flip(0)", "roll": "x.roll(k, 0)", "tril": "mat(x).tril(k - 8)", "repeat": "x.repeat_interleave(2, 0)",
    "hstack": "torch.hstack([mat(x)[:, :9], mat(x)[:, 9:]])", "tile": "mat(x)[:4].repeat(2, 2)", "unfold": "F.unfold(mat(f32(x))[None, None, :9, :9], 3)", "shuffle": "F.pixel_shuffle(fit(f32(x), torch.empty(1, 4, 8, 8)), 2)",
    "fold": "F.fold(fit(f32(x), torch.empty(1, 9, 36)), (8, 8), 3)", "full": "torch.full_like(x, k)", "zeros": "torch.zeros(k + 1, 8)", "arange": "torch.arange(k * 8)",
    "strided": "torch.empty_strided((8, 8), (1, 9)).copy_(fit(f32(x), torch.empty(8, 8)))", "channels": "fit(f32(x), torch.empty(2, 4, 4, 4)).contiguous(memory_format=torch.channels_last)",
    "split": "torch.cat(x.split(3)[::-1])", "tensor_split": "torch.cat(torch.tensor_split(x, (1, 3))[::-1])", "resolve": "x.resolve_conj().resolve_neg()",
    # reductions and sorting
    "sum": "f32(x).sum(-1)", "mean": "f32(x).mean()", "softmax": "f32(x).softmax(-1)", "logsumexp": "f32(x) - f32(x).logsumexp(-1, keepdim=True)", "cumsum": "f32(x).cumsum(0) / 8",
    "sort": "x.sort(dim=-1)[k % 2]", "argsort": "x.argsort(dim=-1, stable=True)", "topk": "vec(x).topk(1 + k % 4)[k % 2]", "cummax": "flt(x).cummax(0)[k % 2]", "var": "f32(x).var(0, unbiased=False)",
    "norm": "f32(x).norm(dim=-1)", "unique": "torch.unique(vec(x), return_inverse=True)[k % 2]", "nonzero": "vec(x).nonzero()", "masked_select": "x.masked_select(x > 0)",
    "bincount": "torch.bincount(index(x, 9))", "median": "flt(x).median(-1)[k % 2]", "histc": "torch.histc(vec(f32(x)).nan_to_num(), 8, -1, 1)", "any": "(x > k).any(-1)", "prod": "vec(f32(x), 9).tanh().prod()",
    # linear algebra
    "matmul": "(mat(f32(x)) @ fit(f32(y), mat(x).t())) / 16", "addmm": "torch.addmm(f32(y).mean(), mat(f32(x)), mat(f32(x)).t()) / 16", "mv": "mat(f32(x)) @ fit(f32(y), mat(x)[0])",
    "bmm": "torch.bmm(mat(f32(x))[None], fit(f32(y), mat(x).t())[None])[0] / 16", "outer": "torch.outer(vec(f32(x)), vec(f32(y))) * 0.1", "einsum": "torch.einsum('ij,kj->ik', mat(f32(x)), mat(f32(x))) / 16",
    "linear": "F.linear(mat(f32(x)), fit(w[k % 3], mat(x)))", "inverse": "torch.linalg.inv(square(x))", "qr": "torch.linalg.qr(square(x))[k % 2]", "cholesky": "torch.linalg.cholesky(square(x) @ square(x).t())",
    "solve": "torch.linalg.solve(square(x), square(y))", "svd": "torch.linalg.svdvals(square(x))", "lu": "torch.linalg.lu_factor(square(x))[0]", "fft": "torch.fft.rfft(f32(x))", "ifft": "torch.fft.irfft(torch.fft.rfft(f32(x)))",
    "cdist": "torch.cdist(mat(f32(x))[:9], mat(f32(x))[:9])", "kron": "torch.kron(mat(f32(x))[:3, :3], mat(f32(y))[:3, :3])",
    # networks
    "layer_norm": "F.layer_norm(mat(f32(x)), mat(x).shape[1:])", "normalize": "F.normalize(f32(x), dim=-1)", "group_norm": "F.group_norm(fit(f32(x), torch.empty(2, 4, 8)), 2)",
    "batch_norm": "F.batch_norm(mat(f32(x)), torch.zeros(mat(x).shape[1]), torch.ones(mat(x).shape[1]), training=True)", "instance_norm": "F.instance_norm(fit(f32(x), torch.empty(2, 4, 8)))",
    "conv": "F.conv2d(mat(f32(x))[None, None], fit(w[k % 3], torch.empty(1, 1, 3, 3)), padding=1)[0, 0]", "conv1": "F.conv1d(fit(f32(x), torch.empty(1, 4, 32)), fit(f32(y), torch.empty(4, 4, 3)))", "conv_t": "F.conv_transpose2d(fit(f32(x), torch.empty(1, 2, 8, 8)), fit(f32(y), torch.empty(2, 2, 2, 2)), stride=2)",
    "pool": "F.max_pool2d(mat(f32(x))[None, None], 3, 1, 1)[0, 0]", "avg_pool": "F.avg_pool2d(mat(f32(x))[None, None], 3, 1, 1)[0, 0]", "adaptive": "F.adaptive_avg_pool2d(mat(f32(x))[None], (4, 5))",
    "attention": "F.scaled_dot_product_attention(mat(f32(x))[None, None], fit(f32(y), mat(x))[None, None], mat(f32(x))[None, None])[0, 0]", "nll": "F.cross_entropy(mat(f32(x)), index(y, mat(x).shape[1], mat(x).shape[0]))",
    "embedding": "F.embedding(index(y, mat(x).shape[0]), mat(flt(x)))", "embedding_bag": "F.embedding_bag(index(y, mat(x).shape[0], 12).view(3, 4), mat(f32(x)))", "interpolate": "F.interpolate(fit(f32(x), torch.empty(1, 2, 6, 6)), scale_factor=2, mode='bilinear')",
    "grid": "F.grid_sample(fit(f32(x), torch.empty(1, 2, 6, 6)), fit(f32(y).tanh(), torch.empty(1, 5, 5, 2)), align_corners=False)", "gru": "torch.gru(fit(f32(x), torch.empty(5, 2, 4)), torch.zeros(1, 2, 4), [fit(f32(y), torch.empty(12, 4)), fit(f32(y), torch.empty(12, 4)), torch.zeros(12), torch.zeros(12)], True, 1, 0.0, True, False, False)[k % 2]",
    "lstm": "torch.lstm(fit(f32(x), torch.empty(5, 2, 4)), [torch.zeros(1, 2, 4)] * 2, [fit(f32(y), torch.empty(16, 4)), fit(f32(y), torch.empty(16, 4)), torch.zeros(16), torch.zeros(16)], True, 1, 0.0, True, False, False)[k % 3]",
    "ctc": "F.ctc_loss(fit(f32(x), torch.empty(12, 2, 5)).log_softmax(2), torch.ones(2, 4, dtype=torch.long), (12, 12), (3, 4))", "mse": "F.mse_loss(f32(x), fit(f32(y), x))", "bce": "F.binary_cross_entropy_with_logits(f32(x), fit(f32(y), x).sigmoid())",
    # indices
    "index": "x[torch.arange(x.shape[0] - 1, -1, -1)]", "index2": "mat(x)[index(y, mat(x).shape[0]), index(x, mat(x).shape[1], 1)]", "gather": "mat(x).gather(1, mat(x).argsort(dim=1, stable=True))", "take": "x.take(index(y, x.numel()))",
    "scatter": "mat(flt(x)).scatter(1, mat(x).argsort(dim=1, stable=True), mat(flt(x)))", "scatter_add": "mat(f32(x)).scatter_add(0, torch.zeros_like(mat(x), dtype=torch.long), fit(f32(y), mat(x)))", "index_select": "x.index_select(0, index(y, x.shape[0]))",
    "index_add": "mat(f32(x)).index_add(0, index(y, mat(x).shape[0], 5), torch.ones(5, mat(x).shape[1]))", "index_put": "vec(f32(x), 4000).index_put((index(y, min(x.numel(), 4000)),), torch.ones(()), accumulate=True)", "masked_fill": "x.masked_fill(x > fit(y, x), 0)",
    "bucketize": "torch.bucketize(f32(x), torch.linspace(-1, 1, 9))", "one_hot": "F.one_hot(index(x, 7), 7)", "searchsorted": "torch.searchsorted(vec(f32(y)).sort()[0], vec(f32(x)))", "segment": "torch.segment_reduce(vec(f32(x), 12), 'sum', lengths=torch.tensor([4, 8]))",
    # through Python
    "item": "x + vec(x)[k % 5].item()", "tolist": "torch.tensor(vec(x).tolist())", "numpy": "flt(x) + float(vec(f32(x)).detach().numpy()[0])", "from_numpy": "torch.from_numpy(f32(x).detach().numpy())",
    "deepcopy": "copy.deepcopy(x.detach())", "pickle": "pickle.loads(pickle.dumps(x.detach()))", "data_ptr": "x + (x.data_ptr() == 0)", "dlpack": "torch.from_dlpack(x.detach())", "as_tensor": "torch.as_tensor(x)", "frombuffer": "torch.frombuffer(bytearray(vec(f32(x)).detach().numpy().tobytes()), dtype=torch.float32)",
    # sparse, nested, quantised
    "sparse": "mat(f32(x)).relu().to_sparse().to_dense()", "sparse_mm": "torch.sparse.mm(mat(f32(x)).relu().to_sparse(), fit(f32(y), mat(x).t()))", "csr": "mat(f32(x)).detach().relu().to_sparse_csr().matmul(fit(f32(y), mat(x).t()))", "coalesce": "mat(f32(x)).detach().to_sparse().coalesce().values()",
    "nested": "torch.nested.to_padded_tensor(torch.nested.nested_tensor([mat(f32(x))[:3], mat(f32(x))[:5]]), 0.5)", "jagged": "torch.nested.nested_tensor([mat(f32(x)).detach()[:3], mat(f32(x)).detach()[:5]], layout=torch.jagged).sin().values()",
    "quantise": "torch.quantize_per_tensor(f32(x).detach().nan_to_num(), 0.1, 0, torch.qint8).dequantize()", "mkldnn": "f32(x).detach().to_mkldnn().relu().to_dense()",
    # transforms
    "vmap": "torch.vmap(lambda row: row.tanh() * row.sum())(mat(f32(x)))", "vmap_rand": "torch.vmap(lambda row: row + torch.randn_like(row), randomness='different')(mat(f32(x)))", "func_grad": "torch.func.grad(lambda v: (v.tanh() * fit(f32(y), v)).sum())(f32(x))", "jvp": "torch.func.jvp(torch.tanh, (f32(x),), (fit(f32(y), x).clone(),))[k % 2]",
    "vjp": "torch.func.vjp(torch.sigmoid, f32(x))[1](fit(f32(y), x))[0]", "jacrev": "torch.func.jacrev(lambda v: v.tanh().cumsum(0))(vec(f32(x), 8))", "hessian": "torch.func.hessian(lambda v: v.tanh().prod())(vec(f32(x), 6))", "functionalize": "torch.func.functionalize(lambda v: v.clone().view(-1).add_(1).view(v.shape))(f32(x))", "jacfwd": "torch.func.jacfwd(lambda v: v.sin() * v)(vec(f32(x), 8))",
}  # fmt: skip

VIEWS = {
    "t": "x.t()", "rows": "x[x.shape[0] // 2 :]", "columns": "x[:, : x.shape[1] // 2]", "diagonal": "x.diagonal()", "step": "x[:: 1 + k % 4]", "step2": "x[..., k % 3 :: 2]", "flat": "x.view(-1)", "select": "x[k % x.shape[0]]",
    "select2": "x[..., k % x.shape[-1]]", "detach": "x.detach()", "data": "x.data", "chunk": "x.chunk(2, 0)[k % 2]", "unbind": "x.unbind(0)[k % x.shape[0]]", "expand": "x[:1].expand(4, *x.shape[1:])", "narrow": "x.narrow(0, k % x.shape[0], 1)",
    "squeeze": "x.squeeze()", "unsqueeze": "x.unsqueeze(k % 2)", "permute": "x.permute(*range(x.dim())[::-1])", "unfold": "x.unfold(0, 2, 1 + k % 2)", "view_int": "x.view(torch.int32)", "view_float": "x.view(torch.float32) if x.dtype == torch.int32 else x.view(torch.int16)",
    "view_byte": "x.view(torch.uint8)", "view_double": "x.view(torch.int64)", "view_real": "torch.view_as_real(x) if x.is_complex() else x.movedim(-1, 0)", "view_complex": "torch.view_as_complex(x.view(-1, 2))", "real": "x.real", "imag": "x.imag if x.is_complex() else x[::2]", "conj": "x.conj()", "neg_view": "torch._neg_view(x)", "alias": "torch.ops.aten.alias(x)",
    "strided": "x.as_strided((min(span(x), 8),), (1,), x.storage_offset())", "overlap": "x.as_strided((3, min(x.shape[-1], 5)), (1, x.stride(-1)), x.storage_offset()) if x.shape[-1] > 8 and x.stride(-1) else x", "split": "x.split(2)[-1]", "tensor_split": "x.tensor_split(3)[k % 3]", "movedim": "x.movedim(0, -1)",
    "same": "x", "view2": "x.view(-1, 2)", "expand_as": "vec(x, 1).expand_as(y)", "reshape": "mat(x)", "swap": "x.swapaxes(0, -1)", "lift": "x.view_as(x)", "hsplit": "mat(x).hsplit([1])[k % 2]", "dsplit": "x.unflatten(-1, (1, -1))", "triple": "x[1:].t()[1:]",
}  # fmt: skip

IN_PLACE = {
    "relu_": "x.relu_()", "mul_": "x.mul_(0.9)", "add_": "x.add_(k)", "zero_": "x.zero_()", "normal_": "x.normal_()", "uniform_": "x.uniform_()", "exponential_": "x.exponential_()", "random_": "x.random_(0, 9)", "bernoulli_": "x.bernoulli_(0.5)", "clamp_": "x.clamp_(-1, 1)",
    "tanh_": "x.tanh_()", "copy_": "x.copy_(fit(y, x))", "copy_self_": "x.copy_(x * 2)", "fill_": "x.fill_(0.3)", "fill_t_": "x.fill_(vec(y)[0])", "add_y_": "x.add_(fit(y, x))", "sub_y_": "x.sub_(fit(y, x), alpha=0.5)", "mul_y_": "x.mul_(fit(y, x))", "addcmul_": "x.addcmul_(fit(y, x), fit(y, x), value=0.1)",
    "lerp_": "x.lerp_(fit(y, x), 0.5)", "dropout_": "F.dropout(x, 0.2, inplace=True)", "foreach_": "torch._foreach_mul_([x], 0.7)", "foreach_two_": "torch._foreach_add_([x, y], 0.5)", "foreach_copy_": "torch._foreach_copy_([x], [fit(y, x)])", "tanh_out": "torch.tanh(x, out=x)", "add_out": "torch.add(f32(x), fit(f32(y), x), out=out(z, x, y))",
    "mul_out": "torch.mul(f32(x), 2, out=out(z, x))", "matmul_out": "torch.matmul(mat(f32(x)), fit(f32(y), mat(x).t()), out=out(z, x, y))", "cat_out": "torch.cat([vec(f32(x)), vec(f32(y))], out=out(z, x, y))", "sort_out": "torch.sort(mat(f32(x)), 1, out=(out(z, x), torch.empty(0, dtype=torch.long)))", "sum_out": "torch.sum(f32(x), 0, out=out(z, x))", "empty_out": "torch.neg(f32(x), out=out(z, x).detach()[:0])", "cumsum_": "x.cumsum_(0)",
    "masked_fill_": "x.masked_fill_(x > 0.5, 0.0)", "masked_scatter_": "x.masked_scatter_(x > 0, fit(y, x))", "index_fill_": "x.index_fill_(0, distinct(k, x.shape[0]), 0.5)", "index_copy_": "x.index_copy_(0, distinct(k, x.shape[0]), fit(y, x)[distinct(k, x.shape[0])])", "index_add_": "x.index_add_(0, index(y, x.shape[0], 3), x[:3].clone())",
    "scatter_": "x.scatter_(0, torch.zeros_like(x, dtype=torch.long)[:1], fit(y, x))", "put_": "x.put_(index(y, x.numel(), 1), vec(x, 1) + 1)", "set_slice": "x[1::2] = k", "set_row": "x[k % x.shape[0]] = fit(y, x[0])", "set_mask": "x[x > 0] = 0.1", "set_index": "x[distinct(k, x.shape[0])] = 0.2", "add_slice": "x[: 1 + k] += 1",
    "t_": "x.t_()", "transpose_": "x.transpose_(0, -1)", "squeeze_": "x.squeeze_()", "unsqueeze_": "x.unsqueeze_(0)", "fill_diagonal_": "x.fill_diagonal_(k)", "tril_": "x.tril_()", "neg_": "x.neg_()", "rrelu_": "F.rrelu_(x, training=True)", "sigmoid_": "x.sigmoid_()", "conj_": "torch.conj_physical_(x)",
    "as_strided_": "x.as_strided_((min(span(x), 4),), (1,))", "resize_down": "x.resize_((span(x) + 1) // 2)", "resize_up": "z.resize_(x.numel() + 64).fill_(k)", "set_": "z.set_(x.detach())", "set_view": "z.set_(x.detach()[x.shape[0] // 2 :])", "data_set": "z.data = x.detach().clone()", "data_same": "z.data = x.data",
    "swap": "torch.utils.swap_tensors(x.detach().clone(), y.detach().clone())", "real_": "x.real.mul_(2)", "diag_": "x.diagonal().add_(1)", "view_": "x.view(-1)[k::3].mul_(0.5)", "chunk_": "x.chunk(2)[1].tanh_()", "int_view_": "x.view(torch.int32).bitwise_and_(-256)", "unbind_": "x.unbind(0)[-1].zero_()", "requires": "x.requires_grad_()",
    "numpy_": "vec(x).detach().numpy().__setitem__(0, k)", "addmm_": "mat(x).addmm_(mat(x), fit(y, torch.empty(mat(x).shape[1], mat(x).shape[1])), alpha=0.01)", "detach_": "x.detach_()", "fused": "torch._fused_sgd_([x.contiguous()], [fit(y, x).contiguous()], [], weight_decay=0.0, momentum=0.0, lr=0.1, dampening=0.0, nesterov=False, maximize=False, is_first_step=True)",
}  # fmt: skip
