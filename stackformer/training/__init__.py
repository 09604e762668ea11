"""stackformer.training"""
