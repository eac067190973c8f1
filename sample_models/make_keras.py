"""Make the Keras sample model (keras_ln_gelu.onnx) beside this script: ``python make_keras.py``.

The weights are the same each time, but tf2onnx varies the order of initialisers and the numbers in some names.

The file in this folder was made with Python 3.11 and tf2onnx, in an environment of its own:

    pip install tensorflow-cpu==2.16.2 keras==3.15.1 tf2onnx==1.17.0 onnx==1.17.0 onnxruntime==1.32.0 numpy==1.26.4

TensorFlow is kept at 2.16 because later releases (2.21, for one) write the exact GELU with Erfc, which is no ONNX
operator and which tf2onnx passes through, so that their models fail the ONNX checker.
"""

import sys

import keras
import numpy as np
import tensorflow as tf
import tf2onnx
from common import Export, make

SEED = 0


def keras_ln_gelu() -> Export:
    """Keras 3 model: Dense, LayerNormalization, exact GELU, Dense (tf2onnx, opset 17)."""
    keras.utils.set_random_seed(SEED)
    inputs = keras.Input((16, 64), name="tokens")
    x = keras.layers.Dense(64)(inputs)
    x = keras.layers.LayerNormalization(
        beta_initializer=keras.initializers.RandomNormal(stddev=0.2),
        gamma_initializer=keras.initializers.RandomUniform(0.5, 1.5),
    )(x)
    x = keras.layers.Activation(lambda t: keras.activations.gelu(t, approximate=False), name="gelu")(x)
    model = keras.Model(inputs, keras.layers.Dense(8)(x))

    signature = [tf.TensorSpec((None, 16, 64), tf.float32, name="tokens")]
    function = tf.function(lambda tokens: model(tokens, training=False), input_signature=signature)
    proto, _ = tf2onnx.convert.from_function(function, input_signature=signature, opset=17)

    tokens = np.random.default_rng(SEED).standard_normal((2, 16, 64), dtype=np.float32)
    expected = model(tokens, training=False).numpy()
    exporter = f"tf2onnx {tf2onnx.__version__}, TensorFlow {tf.__version__}, Keras {keras.__version__}"
    return Export(proto, exporter, {"tokens": tokens}, [expected])


if __name__ == "__main__":
    make({"keras_ln_gelu": keras_ln_gelu}, sys.argv[1:])
