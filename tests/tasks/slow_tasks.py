"""Slow, plain Python: the answers of every task, and generators of the four DCF tasks.

Written from the definitions, sharing nothing with `stackformer.tasks`: the answers work
on readable symbols, one string at a time, and the generators use `random.Random`.
"""

import math
import random

END = "$"


def reverse_string(x):
    return list(reversed(x))


def stack_manipulation(x):
    stack = []
    for symbol in x:
        if symbol in ("a", "b"):
            stack.append(symbol)
        elif symbol == "pop":
            if stack:
                stack.pop()
        else:
            stack.append(symbol.removeprefix("push_"))
    y = [*reversed(stack), END]
    return y + [END] * (len(x) + 1 - len(y))


def modular_arithmetic(x):
    return [str(eval(" ".join(x)) % 5)]


def solve_equation(x):
    if len(x) < 3:
        return ["0"]
    text = " ".join(x[:-2])
    solutions = [d for d in range(5) if eval(text, {"z": d}) % 5 == int(x[-1])]
    assert len(solutions) == 1
    return [str(solutions[0])]


def even_pairs(x):
    text = "".join(x)
    changes = sum(text[i : i + 2] in ("01", "10") for i in range(len(text)))
    return ["even" if changes % 2 == 0 else "odd"]


def parity_check(x):
    return ["even" if x.count("1") % 2 == 0 else "odd"]


def cycle_navigation(x):
    return [str((x.count(">") - x.count("<")) % 5)]


def duplicate_string(x):
    return x + x


def missing_duplicate_string(x):
    if len(x) == 1:
        return ["1"]
    half = len(x) // 2
    i = x.index("?")
    return [x[i + half] if i < half else x[i - half]]


def odds_first(x):
    return x[0::2] + x[1::2]


def _number(bits):
    """The number of bits that come least significant first."""
    return int("".join(reversed(bits)), 2)


def _ended(number, length):
    y = [*reversed(f"{number:b}"), END]
    return y + [END] * (length - len(y))


def binary_addition(x):
    if len(x) <= 2:
        return _ended(_number(x), len(x) + 1)
    plus = x.index("+")
    return _ended(_number(x[:plus]) + _number(x[plus + 1 :]), len(x) + 1)


def binary_multiplication(x):
    if len(x) <= 2:
        return {1: [END], 2: ["0", END]}[len(x)]
    times = x.index("*")
    return _ended(_number(x[:times]) * _number(x[times + 1 :]), len(x))


def compute_sqrt(x):
    root = math.isqrt(int("".join(x), 2))
    return list(f"{root:b}".zfill(math.ceil(len(x) / 2)))


def bucket_sort(x):
    return sorted(x)


SOLVERS = {
    "reverse_string": reverse_string,
    "stack_manipulation": stack_manipulation,
    "modular_arithmetic_brackets": modular_arithmetic,
    "solve_equation": solve_equation,
    "even_pairs": even_pairs,
    "modular_arithmetic": modular_arithmetic,
    "parity_check": parity_check,
    "cycle_navigation": cycle_navigation,
    "duplicate_string": duplicate_string,
    "missing_duplicate_string": missing_duplicate_string,
    "odds_first": odds_first,
    "binary_addition": binary_addition,
    "binary_multiplication": binary_multiplication,
    "compute_sqrt": compute_sqrt,
    "bucket_sort": bucket_sort,
}


def grow_expression(rng: random.Random, length: int, operators: str) -> str:
    """An expression of the benchmark's grammar, by recursion."""
    if length <= 4:
        form = {1: "{}", 2: "-{}", 3: "({})", 4: "(-{})"}[length]
        return form.format(rng.randrange(5))
    left = rng.randint(1, length - 4)
    right = length - 3 - left
    first = grow_expression(rng, left, operators)
    operator = rng.choice(operators)
    return f"({first}{operator}{grow_expression(rng, right, operators)})"


def grow_equation(rng: random.Random, length: int) -> str:
    expression = grow_expression(rng, length - 2, "+-")
    place = rng.randrange(len(expression))
    while not expression[place].isdigit():
        place = (place + 1) % len(expression)
    unknown = expression[:place] + "z" + expression[place + 1 :]
    return f"{unknown}={eval(expression) % 5}"


def grow_instructions(rng: random.Random, length: int) -> list[str]:
    stack_length = 1 if length == 1 else rng.randint(1, length - 1)
    stack = [rng.choice("ab") for _ in range(stack_length)]
    words = ["pop", "push_a", "push_b"]
    return stack + [rng.choice(words) for _ in range(length - stack_length)]
