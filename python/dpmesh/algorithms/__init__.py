"""The algorithms, each in the file of its paper's short name."""

from dpmesh.algorithms import controllers, denoisers
from dpmesh.algorithms.adaptive_sums import AdaptiveSums
from dpmesh.algorithms.base import Algorithm
from dpmesh.algorithms.calibrated import Calibrated
from dpmesh.algorithms.federated import FederatedLearning
from dpmesh.algorithms.federated_combination import SecureAggregation, TrustedServer
from dpmesh.algorithms.federated_gradients import RecordGradients
from dpmesh.algorithms.federated_server import AdaptiveClipping, Average, ServerAdam, ServerMomentum
from dpmesh.algorithms.federated_updates import ClientUpdates
from dpmesh.algorithms.first_stage import FirstStage
from dpmesh.algorithms.gradient_descent import GradientDescent
from dpmesh.algorithms.gradient_tracking import GradientTracking
from dpmesh.algorithms.messages import Communication, Message, Relay, Round
from dpmesh.algorithms.online import OnlineLearning
from dpmesh.algorithms.push_sum import PushSum
from dpmesh.algorithms.quantized import QuantizedGossip
from dpmesh.algorithms.record_sums import RecordSums
from dpmesh.algorithms.secure_gossip import SecureGossip
from dpmesh.algorithms.with_replacement import WithReplacement
from dpmesh.algorithms.without_replacement import WithoutReplacement

__all__ = [
    "AdaptiveClipping",
    "AdaptiveSums",
    "Algorithm",
    "Average",
    "Calibrated",
    "ClientUpdates",
    "Communication",
    "FederatedLearning",
    "FirstStage",
    "GradientDescent",
    "GradientTracking",
    "Message",
    "OnlineLearning",
    "PushSum",
    "QuantizedGossip",
    "RecordGradients",
    "RecordSums",
    "Relay",
    "Round",
    "SecureAggregation",
    "SecureGossip",
    "ServerAdam",
    "ServerMomentum",
    "TrustedServer",
    "WithReplacement",
    "WithoutReplacement",
    "controllers",
    "denoisers",
]
